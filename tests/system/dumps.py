"""Changes keys of the metadata: a dump is taken apart, changed and put together.

docs/FORMATS.md, "Dump of the metadata", has the bytes."""
import struct

HEAD_BYTES, FRAME_BYTES = 64, 16
ITEMS, END = 1, 2
FRAME_MAX = 1 << 20


def table_make():
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82f63b78 if i & 1 else 0)
        table.append(i)
    return table


TABLE = table_make()


def crc32c(data, crc=0):
    crc ^= 0xffffffff
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xff] ^ crc >> 8
    return crc ^ 0xffffffff


def dump_read(path):
    """Returns the head and all keys with their values."""
    with open(path, "rb") as f:
        text = f.read()
    items, at = {}, HEAD_BYTES
    while text[at + 8] == ITEMS:
        end = at + FRAME_BYTES + struct.unpack_from("<I", text, at + 12)[0]
        at += FRAME_BYTES
        while at < end:
            key_len, _, val_len = struct.unpack_from("<HHI", text, at)
            key = text[at + 8:at + 8 + key_len]
            items[key] = text[at + 8 + key_len:at + 8 + key_len + val_len]
            at += 8 + key_len + val_len
    return text[:HEAD_BYTES], items


def frame(head, number, kind, payload):
    rest = struct.pack("<IBxxxI", number, kind, len(payload))
    return struct.pack("<I", crc32c(rest + payload, crc32c(head))) + rest + payload


def dump_write(path, head, items):
    frames, payload = [], b""
    for key in sorted(items):
        payload += struct.pack("<HHI", len(key), 0, len(items[key])) + key + items[key]
        if len(payload) > FRAME_MAX:
            frames.append(payload)
            payload = b""
    frames.append(payload)
    n_bytes = sum(len(p) for p in frames)
    with open(path, "wb") as f:
        f.write(head)
        for number, payload in enumerate(frames):
            f.write(frame(head, number, ITEMS, payload))
        f.write(frame(head, len(frames), END, struct.pack("<QQ", len(items), n_bytes)))


def ino_key(kind, export, ino, rest=b""):
    """Returns the key of this kind (a letter) that begins with an export and an inode number."""
    return kind.encode() + struct.pack(">IQ", export, ino) + rest
