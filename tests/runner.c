/*
 * runner.c - runs every test in a process and process group of its own, with a time limit, a few at
 * once.
 *
 * Called by `make test`: runner [-j N] [-x FACTOR] [-r DIR] [-k TEXT]... [-l] PROGRAM... A PROGRAM
 * ending in .sh is one test; any other names its tests with --list and runs one given its name.
 * With -r, a case that its source declares (`release: NAME`, `release: all`) runs whole from the
 * release build in DIR, and from PROGRAM with SALVO_TEST_BRIEF=1: a part of it. Output is shown
 * only for what failed, whole when it ends and its last lines once more after all tests. Ends with
 * "N passed, M failed" (", K skipped"), exit code 1 when anything failed. Must not: depend on the
 * project's code, so that it can tell when that is broken; leave out a case of a program.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_LIMIT_S 60
#define MAX_JOBS 64
#define MAX_OUTPUT (256 << 10) /* bytes kept of one test: its end is what tells */
#define MAX_REPEATED 8         /* failures repeated at the end */
#define REPEATED_LINES 12      /* of each, the last ones */
#define EXIT_SKIPPED 77

enum build { AS_GIVEN, BRIEF, RELEASE }; /* PROGRAM; a part of the case from it; DIR's program */

struct test {
    char *prog;
    char *name; /* NULL: a script, or a program as a whole */
    int limit_s;
    enum build build;
};

struct names {
    char *at[1024];
    size_t n;
};

struct job {
    pid_t pid; /* 0: free */
    int fd;    /* read end of its output, -1 after its end */
    size_t test;
    double start;
    bool timed_out;
    char *out;
    size_t n_out, n_lost;
};

static struct {
    struct test *tests;
    size_t n_tests;
    const char *filters[32];
    const char *release_dir; /* NULL: programs run their cases whole */
    int n_filters;
    int n_jobs, time_factor;
    bool list;
    bool tty;
    double cpu_s;
    size_t n_passed, n_failed, n_skipped;
    char *repeated[MAX_REPEATED]; /* a failure's name, verdict and last lines */
    struct job jobs[MAX_JOBS];
} R = {.n_jobs = 2, .time_factor = 1};

static volatile sig_atomic_t interrupted;

static void *must(void *p)
{
    if (!p) {
        fputs("runner: out of memory\n", stderr);
        exit(2);
    }
    return p;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---------------------------------------------------------------- finding tests */

static bool is_script(const char *prog)
{
    size_t n = strlen(prog);
    return n > 3 && strcmp(prog + n - 3, ".sh") == 0;
}

/* The source of build/asan/tests/x/test_y is tests/x/test_y.c; a script is its own source. */
static FILE *open_source(const char *prog)
{
    char path[4096];
    const char *at = strstr(prog, "tests/");
    if (is_script(prog))
        return fopen(prog, "re");
    if (!at || snprintf(path, sizeof path, "%s.c", at) >= (int)sizeof path)
        return NULL;
    return fopen(path, "re");
}

static void add_name(struct names *to, const char *name)
{
    if (to->n == sizeof to->at / sizeof to->at[0]) {
        fprintf(stderr, "runner: more than %zu cases of one program\n", to->n);
        exit(2);
    }
    to->at[to->n++] = must(strdup(name));
}

static bool has_name(const struct names *in, const char *name)
{
    for (size_t i = 0; i < in->n; i++)
        if (strcmp(in->at[i], name) == 0)
            return true;
    return false;
}

static void free_names(struct names *names)
{
    while (names->n)
        free(names->at[--names->n]);
}

static bool in_comment(const char *line)
{
    line += strspn(line, " \t");
    return *line == '#' || *line == '*' || (line[0] == '/' && (line[1] == '*' || line[1] == '/'));
}

/* "timeout: 300" or "timeout: NAME 300" in a comment of the source; the latter wins. */
static int limit_of(const char *prog, const char *name)
{
    char line[512], word[256];
    int limit = DEFAULT_LIMIT_S, own = 0, n;
    FILE *f = open_source(prog);

    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "timeout: ");
        if (!at || !in_comment(line))
            continue;
        at += strlen("timeout: ");
        if (sscanf(at, "%d", &n) == 1 && n > 0)
            limit = n;
        else if (sscanf(at, "%255s %d", word, &n) == 2 && n > 0 && name && strcmp(word, name) == 0)
            own = n;
    }
    if (f)
        fclose(f);
    return (own ? own : limit) * R.time_factor;
}

/* "release: NAME" or "release: all" in comments of the source. */
static void find_declared(const char *prog, struct names *names)
{
    char line[512], word[256];
    FILE *f = open_source(prog);

    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "release: ");
        if (at && in_comment(line) && sscanf(at + strlen("release: "), "%255s", word) == 1)
            add_name(names, word);
    }
    if (f)
        fclose(f);
}

static void label(const struct test *t, char *out, size_t n)
{
    static const char *const says[] = {[BRIEF] = " (in part)", [RELEASE] = " (release)"};
    const char *at = strstr(t->prog, "tests/");
    const char *prog = at ? at + strlen("tests/") : t->prog;
    snprintf(out, n, "%s%s%s%s", prog, t->name ? "/" : "", t->name ? t->name : "",
             t->build == AS_GIVEN ? "" : says[t->build]);
}

static bool wanted(const struct test *t)
{
    char text[1024];
    label(t, text, sizeof text);
    for (int i = 0; i < R.n_filters; i++)
        if (strstr(text, R.filters[i]))
            return true;
    return R.n_filters == 0;
}

static void add_test(const char *prog, const char *name, enum build build)
{
    struct test t = {must(strdup(prog)), name ? must(strdup(name)) : NULL, 0, build};
    if (!wanted(&t)) {
        free(t.prog);
        free(t.name);
        return;
    }
    t.limit_s = limit_of(prog, name);
    R.tests = must(realloc(R.tests, (R.n_tests + 1) * sizeof t));
    R.tests[R.n_tests++] = t;
}

/* None when the program cannot tell. */
static void list_cases(const char *prog, struct names *names)
{
    char command[4200], line[512];
    FILE *f;

    snprintf(command, sizeof command, "'%s' --list </dev/null 2>/dev/null", prog);
    f = must(popen(command, "re"));
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0])
            add_name(names, line);
    }
    if (pclose(f) != 0)
        free_names(names);
}

/* Declared cases from the release build. A name that is no case's, or a case that only one of the
 * two builds has, becomes a test that fails there. */
static void add_release(const char *prog, const struct names *cases, const struct names *declared)
{
    struct names others = {.n = 0};
    const struct names *run = has_name(declared, "all") ? cases : declared;
    const char *at = strstr(prog, "tests/");
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", R.release_dir, at ? at : prog);
    for (size_t i = 0; i < run->n; i++)
        add_test(path, run->at[i], RELEASE);
    list_cases(path, &others);
    for (size_t i = 0; i < others.n; i++)
        if (!has_name(cases, others.at[i]))
            add_test(prog, others.at[i], AS_GIVEN);
    free_names(&others);
}

/* A program that cannot list its tests becomes one test, which then fails and shows why. */
static void add_program(const char *prog)
{
    struct names cases = {.n = 0}, declared = {.n = 0};

    if (!is_script(prog)) {
        list_cases(prog, &cases);
        if (R.release_dir)
            find_declared(prog, &declared);
    }
    if (cases.n == 0)
        add_test(prog, NULL, AS_GIVEN);
    for (size_t i = 0; i < cases.n; i++)
        add_test(prog, cases.at[i],
                 has_name(&declared, "all") || has_name(&declared, cases.at[i]) ? BRIEF : AS_GIVEN);
    if (cases.n && declared.n)
        add_release(prog, &cases, &declared);
    free_names(&cases);
    free_names(&declared);
}

/* ---------------------------------------------------------------- running one */

static void start(struct job *j, size_t index)
{
    const struct test *t = &R.tests[index];
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0) {
        perror("runner: pipe");
        exit(2);
    }
    fflush(NULL);
    j->pid = fork();
    if (j->pid < 0) {
        perror("runner: fork");
        exit(2);
    }
    if (j->pid == 0) {
        char *args[] = {t->prog, t->name, NULL};
        char *script[] = {"bash", t->prog, NULL};
        int null = open("/dev/null", O_RDONLY);
        setpgid(0, 0);
        dup2(null, 0);
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        if (t->build == BRIEF)
            setenv("SALVO_TEST_BRIEF", "1", 1);
        execvp(is_script(t->prog) ? "bash" : t->prog, is_script(t->prog) ? script : args);
        fprintf(stderr, "cannot start %s: %s\n", t->prog, strerror(errno));
        _exit(127);
    }
    setpgid(j->pid, j->pid); /* also here: whoever comes first */
    close(fds[1]);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    j->fd = fds[0];
    j->test = index;
    j->start = now();
    j->timed_out = false;
    j->n_out = j->n_lost = 0;
    if (!j->out)
        j->out = must(malloc(MAX_OUTPUT + 1));
}

/* Takes what the pipe holds; when the buffer is full its first half goes. */
static void drain(struct job *j)
{
    while (j->fd >= 0) {
        ssize_t n;
        if (j->n_out == MAX_OUTPUT) {
            j->n_out = MAX_OUTPUT / 2;
            j->n_lost += MAX_OUTPUT / 2;
            memmove(j->out, j->out + MAX_OUTPUT / 2, MAX_OUTPUT / 2);
        }
        n = read(j->fd, j->out + j->n_out, MAX_OUTPUT - j->n_out);
        if (n > 0) {
            j->n_out += (size_t)n;
            continue;
        }
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        close(j->fd);
        j->fd = -1;
    }
}

static void verdict(struct job *j, int status, char *out, size_t n)
{
    if (j->timed_out)
        snprintf(out, n, "no end after %d s (on a slow or busy machine: make test SLOW=3)",
                 R.tests[j->test].limit_s);
    else if (WIFSIGNALED(status))
        snprintf(out, n, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(out, n, "exit code %d", WEXITSTATUS(status));
}

/* Keeps what repeat_failures() shows; call before n_failed counts this failure. */
static void keep_failure(const struct job *j, const char *name, const char *why)
{
    size_t at = j->n_out, size;
    int lines = 0;

    if (R.n_failed >= MAX_REPEATED)
        return;
    while (at > 0 && lines < REPEATED_LINES)
        lines += j->out[--at] == '\n' && at + 1 < j->n_out;
    at += j->out[at] == '\n';
    size = strlen(name) + strlen(why) + (j->n_out - at) + 16;
    R.repeated[R.n_failed] = must(malloc(size));
    snprintf(R.repeated[R.n_failed], size, "FAILED %s: %s\n%s", name, why, j->out + at);
}

static void repeat_failures(void)
{
    for (size_t i = 0; i < R.n_failed && i < MAX_REPEATED; i++) {
        const char *text = R.repeated[i];
        printf("%s%s", text, text[strlen(text) - 1] == '\n' ? "" : "\n");
    }
    if (R.n_failed > MAX_REPEATED)
        printf("and %zu more: see ---- above\n", R.n_failed - MAX_REPEATED);
}

static void finish(struct job *j, int status, double cpu_s)
{
    char name[1024], why[128];
    bool passed = !j->timed_out && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    bool skipped = !j->timed_out && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED;

    kill(-j->pid, SIGKILL); /* children it left behind */
    drain(j);
    if (j->fd >= 0)
        close(j->fd);
    j->out[j->n_out] = 0;
    if (passed && strstr(j->out, "[  SKIPPED ]")) { /* cmocka's skip() */
        passed = false;
        skipped = true;
    }
    label(&R.tests[j->test], name, sizeof name);
    R.cpu_s += cpu_s;
    R.n_passed += passed;
    R.n_skipped += skipped;
    if (R.tty)
        fputs("\r\033[K", stdout);
    if (!passed && !skipped) {
        verdict(j, status, why, sizeof why);
        keep_failure(j, name, why);
        R.n_failed++;
        printf("---- %s: %s\n", name, why);
        if (j->n_lost)
            printf("(%zu bytes left out)\n", j->n_lost);
        fwrite(j->out, 1, j->n_out, stdout);
        printf("%s---- end of %s\n", j->n_out && j->out[j->n_out - 1] != '\n' ? "\n" : "", name);
    } else if (skipped || !R.tty) {
        printf("%s %7.2f s %7.2f s of CPU  %s\n", skipped ? "skip" : "ok  ", now() - j->start,
               cpu_s, name);
    }
    if (R.tty)
        printf("[%zu/%zu] ", R.n_passed + R.n_failed + R.n_skipped, R.n_tests);
    fflush(stdout);
    j->pid = 0;
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

static void kill_all(void)
{
    for (int i = 0; i < R.n_jobs; i++)
        if (R.jobs[i].pid)
            kill(-R.jobs[i].pid, SIGKILL);
}

/* ---------------------------------------------------------------- running all */

static void on_signal(int sig)
{
    if (sig != SIGCHLD) /* that one only ends the wait below */
        interrupted = sig;
}

/* Waits a little for output or an end. SIGCHLD interrupts it, so that short tests cost no wait. */
static void wait_some(const sigset_t *unblocked)
{
    struct pollfd fds[MAX_JOBS];
    struct timespec limit = {0, 200 * 1000 * 1000};
    nfds_t n = 0;
    for (int i = 0; i < R.n_jobs; i++)
        if (R.jobs[i].pid && R.jobs[i].fd >= 0)
            fds[n++] = (struct pollfd){R.jobs[i].fd, POLLIN, 0};
    ppoll(fds, n, &limit, unblocked);
}

static void run_all(void)
{
    size_t next = 0;
    int n_running = 0;
    sigset_t chld, old;

    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, &old);
    while ((next < R.n_tests || n_running) && !interrupted) {
        for (int i = 0; i < R.n_jobs && next < R.n_tests; i++)
            if (!R.jobs[i].pid) {
                sigprocmask(SIG_SETMASK, &old, NULL); /* the child inherits the mask */
                start(&R.jobs[i], next++);
                sigprocmask(SIG_BLOCK, &chld, NULL);
                n_running++;
            }
        wait_some(&old);
        for (int i = 0; i < R.n_jobs; i++) {
            struct job *j = &R.jobs[i];
            struct rusage used;
            int status;
            if (!j->pid)
                continue;
            drain(j);
            if (wait4(j->pid, &status, WNOHANG, &used) == j->pid) {
                finish(j, status, seconds(used.ru_utime) + seconds(used.ru_stime));
                n_running--;
            } else if (!j->timed_out && now() - j->start > R.tests[j->test].limit_s) {
                j->timed_out = true;
                kill(-j->pid, SIGKILL);
            }
        }
    }
    kill_all();
    sigprocmask(SIG_SETMASK, &old, NULL);
}

/* Each case is whole in one build: this many in either. */
static void print_builds(void)
{
    size_t n[3] = {0};
    for (size_t i = 0; i < R.n_tests; i++)
        n[R.tests[i].build] += R.tests[i].name != NULL;
    if (R.release_dir)
        printf("%zu cases: %zu whole as given, %zu in part and whole in the release build\n",
               n[AS_GIVEN] + n[RELEASE], n[AS_GIVEN], n[RELEASE]);
}

static int usage(void)
{
    fputs("usage: runner [-j JOBS] [-x TIME_FACTOR] [-r DIR] [-k TEXT]... [-l|--list] PROGRAM...\n",
          stderr);
    return 2;
}

static void handle_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGCHLD, &sa, NULL);
}

int main(int argc, char **argv)
{
    int i = 1;
    double begin = now();

    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "-l") == 0 || strcmp(argv[i], "--list") == 0)
            R.list = true;
        else if (strcmp(argv[i], "-j") == 0 && value && atoi(value) > 0 && atoi(value) <= MAX_JOBS)
            R.n_jobs = atoi(argv[++i]);
        else if (strcmp(argv[i], "-x") == 0 && value && atoi(value) > 0)
            R.time_factor = atoi(argv[++i]);
        else if (strcmp(argv[i], "-r") == 0 && value)
            R.release_dir = argv[++i];
        else if (strcmp(argv[i], "-k") == 0 && value && R.n_filters < 32)
            R.filters[R.n_filters++] = argv[++i];
        else
            return usage();
    }
    if (i == argc)
        return usage();
    for (; i < argc; i++)
        add_program(argv[i]);
    if (R.list) {
        for (size_t k = 0; k < R.n_tests; k++) {
            char name[1024];
            label(&R.tests[k], name, sizeof name);
            printf("%s (%d s)\n", name, R.tests[k].limit_s);
        }
        return 0;
    }
    R.tty = isatty(1);
    handle_signals();
    run_all();
    if (R.tty)
        fputs("\r\033[K", stdout);
    if (interrupted) {
        printf("interrupted\n");
        return 1;
    }
    repeat_failures();
    print_builds();
    printf("%.1f s, %.1f s of CPU\n%zu passed, %zu failed", now() - begin, R.cpu_s, R.n_passed,
           R.n_failed);
    if (R.n_skipped)
        printf(", %zu skipped", R.n_skipped);
    puts("");
    return R.n_failed || !R.n_tests;
}
