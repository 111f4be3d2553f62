/*
 * parts.c - the pieces of src/cli that unit tests look at. libsalvo.a leaves that folder out, so
 * they are compiled into the test library here. Must not: hold a test.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE 1

#include "cli/answer.c"
#include "cli/args.c"
#include "cli/bench_losses.c"
#include "cli/bench_pair.c"
#include "cli/chat.c"
#include "cli/colour.c"
#include "cli/jsonl.c"
#include "cli/measure.c"
#include "cli/progress.c"
#include "cli/reader.c"
#include "cli/signal.c"
#include "cli/table.c"
