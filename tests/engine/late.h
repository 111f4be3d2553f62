/*
 * late.h - a CPU device that pretends to have a queue: what is downloaded arrives only when the
 * engine waits for it.
 *
 * Used by engine tests of steps that run ahead. Ops still run while they are called; what is caught
 * is the host reading a result too early, and host memory changed before its upload can have
 * happened.
 */
#ifndef SV_TEST_LATE_H
#define SV_TEST_LATE_H

#include "engine/engine.h"

struct late;
/* From now on; nothing may be in flight. */
struct late *late_begin(struct sv_engine *e);
/* Everything has arrived. Returns how often the engine waited for a mark beyond the steps' own. */
int64_t late_end(struct late *l);

#endif
