/*
 * mutations_emulated.cpp - runs an emulated check once as it is, which must pass, and once with each of the faults that
 * mutations_emulated.test.sh put into its kernels: each run must fail by itself, not by the clock.
 *
 * CHECK names the check's source, N_FAULTS how many faults there are; faults look at emu_fault. Compiled once for all of
 * them. Prints a line for each run. Must not: pass when the check fails without a fault.
 */
#define main checked
#include CHECK
#undef main

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int emu_fault; /* 0: none */

int main(int argc, char **argv)
{
    enum { MOST_SECONDS = 100 };
    int bad = 0;
    for (int fault = 0; fault <= N_FAULTS; fault++) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            emu_fault = fault;
            alarm(MOST_SECONDS);
            if (fault)
                freopen("/dev/null", "w", stderr);
            dup2(2, 1);
            _exit(checked(argc, argv));
        }
        int rc = 0;
        if (child < 0 || waitpid(child, &rc, 0) != child)
            return 2;
        const bool late = WIFSIGNALED(rc) && WTERMSIG(rc) == SIGALRM, failed = rc != 0;
        printf("%d %s\n", fault, late ? "not done in time" : failed ? "found" : "passed");
        bad |= late || failed != (fault > 0);
    }
    return bad;
}
