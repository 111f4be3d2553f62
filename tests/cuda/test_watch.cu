/*
 * test_watch.cu - a kernel that does not end: waits for the device time out and name the last
 * launches, every later call fails at once, closing returns, the engine fails its requests, and the
 * process can exit. A long queue that makes progress does not time out.
 *
 * Built with CUDA=1; skips without a GPU. tests/gpu.sh runs it alone, because it is about time. The
 * kernel that stalls is this program's own and ends by itself after half a minute. Must not: leave
 * it running.
 */
extern "C" {
#include "engine/run.h"
#include "testing.h"
}
#include "backend/cuda/watch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUNS, LET_GO, ENDED };

static volatile int *flag; /* pinned: the stalling kernel looks at it over the bus */

static __device__ int64_t now_ns(void)
{
    int64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

static __global__ void stall_kernel(volatile int *at)
{
    const int64_t end = now_ns() + 30000000000ll;
    while (*at == RUNS && now_ns() < end) {
    }
    *at = ENDED;
    __threadfence_system();
}

static __global__ void nap_kernel(int64_t ns)
{
    const int64_t end = now_ns() + ns;
    while (now_ns() < end) {
    }
}

static double seconds(void)
{
    return (double)sv_clock_us() / 1e6;
}

static void stall(struct sv_dev *dev)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (!flag)
        assert_int_equal(cudaHostAlloc((void **)&flag, sizeof *flag, cudaHostAllocDefault),
                         cudaSuccess);
    *flag = RUNS;
    sv_cuda_launch(cu, "a test's kernel", stall_kernel, 1, 1, 0, flag);
}

static void let_go(void)
{
    const double begin = seconds();
    assert_int_equal(*flag, RUNS); /* it was stuck all the time */
    *flag = LET_GO;
    while (*flag != ENDED)
        assert_true(seconds() - begin < 5);
}

static void need_gpu(void)
{
    if (!sv_cuda_present()) {
        print_message("no GPU: waits for a device that does not answer were NOT checked\n");
        skip();
    }
}

static struct sv_dev *open_device(void)
{
    struct sv_dev_opts o = {};
    struct sv_dev *dev;
    struct sv_err err;
    o.backend = "cuda";
    o.compute = SV_BF16;
    o.timeout_s = 1;
    if (sv_dev_open(&dev, &o, &err))
        fail_msg("%s", err.msg);
    /* The first launch of a kernel loads its code, and that waits for what runs. */
    sv_cuda_launch(sv_cuda_of(dev), "nap", nap_kernel, 1, 1, 0, (int64_t)0);
    assert_int_equal(sv_dev_sync(dev, &err), SV_OK);
    return dev;
}

/* ---------------------------------------------------------------- each wait */

static char memory[1 << 20];
static void *on_device;

static int by_sync(struct sv_dev *dev, struct sv_err *err)
{
    return sv_dev_sync(dev, err);
}
static int by_mark(struct sv_dev *dev, struct sv_err *err)
{
    sv_dev_mark(dev, 1);
    return sv_dev_wait(dev, 1, err);
}
static int by_download(struct sv_dev *dev, struct sv_err *err)
{
    sv_dev_download(dev, memory, on_device, sizeof memory);
    return sv_dev_sync(dev, err);
}
static int by_upload(struct sv_dev *dev, struct sv_err *err)
{
    sv_dev_upload(dev, on_device, memory, sizeof memory);
    return sv_dev_sync(dev, err);
}
static int by_ring(struct sv_dev *dev, struct sv_err *err)
{
    for (int i = 0; i < 40; i++) /* more than it holds */
        sv_dev_upload(dev, on_device, memory, 60000);
    return sv_dev_sync(dev, err);
}
static int by_alloc(struct sv_dev *dev, struct sv_err *err)
{
    void *p;
    return sv_dev_alloc(dev, &p, 1000, err);
}
static int by_free(struct sv_dev *dev, struct sv_err *err)
{
    sv_dev_free(dev, on_device);
    return sv_dev_sync(dev, err);
}
static int by_reserve(struct sv_dev *dev, struct sv_err *err)
{
    struct sv_dev_limits lim = {};
    lim.max_rows = lim.max_logit_rows = 8;
    lim.max_k = lim.max_n = lim.max_vocab = 256;
    lim.max_heads = 2;
    lim.max_head_dim = 64;
    lim.max_positions = 64;
    return sv_dev_reserve(dev, &lim, err);
}
static int by_measure(struct sv_dev *dev, struct sv_err *err)
{
    assert_true(sv_dev_measure_read(dev, 1 << 20) == 0);
    return sv_dev_sync(dev, err);
}
/* 512 launches wait for room; what comes after that must not fill the queue of the driver either.
 */
static int by_launches(struct sv_dev *dev, struct sv_err *err)
{
    for (int i = 0; i < 5000; i++)
        sv_cuda_launch(sv_cuda_of(dev), "nap", nap_kernel, 1, 1, 0, (int64_t)0);
    return sv_dev_sync(dev, err);
}

static void gives_up(int (*by)(struct sv_dev *, struct sv_err *), const char *name)
{
    struct sv_dev *dev = open_device();
    struct sv_err err = {}, again = {};
    double t = seconds();
    assert_int_equal(sv_dev_alloc(dev, &on_device, sizeof memory, &err), SV_OK);
    assert_int_equal(sv_dev_sync(dev, &err), SV_OK);
    stall(dev);
    t = seconds();
    assert_int_equal(by(dev, &err), SV_EDEVICE);
    t = seconds() - t;
    print_message("%s: %.2f s: %s\n", name, t, err.msg);
    assert_true(t > 0.9 && t < 2.5);
    assert_non_null(strstr(err.msg, "no answer from the device for 1 s"));
    assert_non_null(strstr(err.msg, "the others: a test's kernel"));
    t = seconds();
    by_upload(dev, &again);
    by_launches(dev, &again);
    by_download(dev, &again);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(by_mark(dev, &again), SV_EDEVICE);
        assert_string_equal(again.msg, err.msg);
    }
    assert_int_equal(by_alloc(dev, &again), SV_EDEVICE);
    assert_string_equal(again.msg, err.msg);
    sv_dev_close(dev);
    assert_true(seconds() - t < 0.5);
    let_go();
}

static void each_wait_gives_up(void **)
{
    static const struct {
        int (*by)(struct sv_dev *, struct sv_err *);
        const char *name;
    } waits[] = {{by_sync, "sync"},        {by_mark, "mark"},       {by_download, "download"},
                 {by_upload, "upload"},    {by_ring, "ring"},       {by_alloc, "alloc"},
                 {by_free, "free"},        {by_reserve, "reserve"}, {by_measure, "measure"},
                 {by_launches, "launches"}};
    need_gpu();
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++)
        gives_up(waits[i].by, waits[i].name);
}

/* Nobody has waited before. */
static void close_gives_up(void **)
{
    need_gpu();
    struct sv_dev *dev = open_device();
    stall(dev);
    const double t = seconds();
    sv_dev_close(dev);
    assert_true(seconds() - t > 0.9 && seconds() - t < 2.5);
    let_go();
}

/* Another device of the same GPU goes on, but freeing its memory would wait for the stuck one's
 * kernel. */
static void the_neighbour_closes(void **)
{
    need_gpu();
    struct sv_dev *dev = open_device(), *other = open_device();
    struct sv_err err;
    stall(dev);
    assert_int_equal(sv_dev_sync(dev, &err), SV_EDEVICE);
    const double t = seconds();
    assert_int_equal(sv_dev_sync(other, &err), SV_OK);
    sv_dev_close(other);
    sv_dev_close(dev);
    assert_true(seconds() - t < 0.5);
    let_go();
}

/* 2.5 s of work in kernels of 10 ms, under a limit of one second. */
static void a_long_queue_is_waited_for(void **)
{
    need_gpu();
    struct sv_dev *dev = open_device();
    struct sv_err err;
    const double t = seconds();
    for (int i = 0; i < 250; i++)
        sv_cuda_launch(sv_cuda_of(dev), "nap", nap_kernel, 1, 1, 0, (int64_t)10000000);
    assert_int_equal(sv_dev_sync(dev, &err), SV_OK);
    assert_true(seconds() - t > 2);
    sv_dev_close(dev);
}

/* ---------------------------------------------------------------- the engine */

static void the_engine_ends(void **)
{
    enum { N = 3 };
    char target[512], draft[512], msg[512] = "";
    const int32_t prompt[] = {5, 9, 13, 17, 40, 41, 42};
    struct sv_engine_options o = sv_default_options();
    struct run_events events[N] = {};
    struct sv_engine *e;
    need_gpu();
    snprintf(target, sizeof target, "%s", sv_test_path("tests/golden/tiny/pair_target"));
    snprintf(draft, sizeof draft, "%s", sv_test_path("tests/golden/tiny/pair_draft_full_b16"));
    o.target_dir = target;
    o.draft_dir = draft;
    o.device = "cuda";
    o.device_timeout = 1;
    o.max_sequences = 2;
    o.context = 256;
    if (sv_open_engine(&e, &o, msg, sizeof msg))
        fail_msg("%s", msg);
    for (int i = 0; i < N; i++) {
        struct sv_request r = sv_default_request(e);
        r.prompt_ids = prompt;
        r.n_prompt_ids = 3 + i;
        r.max_tokens = 200;
        r.ignore_eos = true;
        r.on_event = run_on_event;
        r.user = &events[i];
        assert_int_equal(sv_submit_request(e, &r, NULL, msg, sizeof msg), SV_OK);
    }
    for (int i = 0; i < 4; i++)
        assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
    stall(e->dev);
    double t = seconds();
    int rc;
    while ((rc = sv_step_engine(e, msg, sizeof msg)) > 0) {
    }
    assert_int_equal(rc, SV_EDEVICE);
    assert_true(seconds() - t > 0.9 && seconds() - t < 3);
    print_message("engine: %s\n", msg);
    assert_non_null(strstr(msg, "no answer from the device for 1 s"));
    for (int i = 0; i < N; i++) {
        assert_int_equal(events[i].n_ends, 1);
        assert_int_equal(events[i].finish, SV_FINISH_ERROR);
        assert_string_equal(events[i].message, msg);
    }
    assert_true(events[0].n_tokens > 0);
    t = seconds();
    sv_close_engine(e);
    assert_true(seconds() - t < 0.5);
    let_go();
}

/* As cli/main.c does, with the kernel still running. */
static int leave_stuck(void)
{
    struct sv_err err;
    if (!sv_cuda_present())
        return 77;
    struct sv_dev *dev = open_device();
    stall(dev);
    if (sv_dev_sync(dev, &err) != SV_EDEVICE)
        return 2;
    sv_dev_close(dev);
    return 1;
}

static void the_process_ends(void **)
{
    int status = 0, rc = 0;
    const double begin = seconds();
    const pid_t child = fork(); /* before anything of CUDA */
    if (child == 0) {
        const int code = leave_stuck();
        fflush(NULL);
        _exit(code);
    }
    while ((rc = waitpid(child, &status, WNOHANG)) == 0 && seconds() - begin < 20)
        usleep(10000);
    if (rc == 0)
        kill(child, SIGKILL);
    assert_int_equal(rc, child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        need_gpu();
    print_message("the process has ended after %.2f s\n", seconds() - begin);
    assert_int_equal(WEXITSTATUS(status), 1);
}

SV_TEST_MAIN(cmocka_unit_test(the_process_ends), cmocka_unit_test(each_wait_gives_up),
             cmocka_unit_test(close_gives_up), cmocka_unit_test(the_neighbour_closes),
             cmocka_unit_test(a_long_queue_is_waited_for), cmocka_unit_test(the_engine_ends))
