/*
 * interrupt.h - SIGINT and SIGTERM for verbs that wait.
 */
#ifndef ROZO_DEPLOY_CLI_INTERRUPT_H
#define ROZO_DEPLOY_CLI_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

/** Keeps SIGINT and SIGTERM from ending the program, and notes them. */
void interrupt_catch(void);
bool interrupt_came(void);
/** Waits, or until a signal comes. */
void interrupt_pause_ms(uint32_t ms);

#endif
