/*
 * shared_emulated.cpp - the shared memory that launches ask for on a card of AMD's, by the host
 * code that launches them: a line "KERNEL<tab>BYTES" for each kernel that asks for any, the most of
 * all launches and of what the kernel was given.
 *
 * Compiled and run by compile.test.sh with the emulator, as waves of 64; kernels do not run. Shapes
 * go from one row to more than a batch has. Only products, attention, experts and the delta rule
 * ask for shared memory at a launch, which compile.test.sh checks.
 */
#include "backend/cuda/attention.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/moe.h"
#include "backend/gpu/gdn.h"
#include "backend/gpu/mla.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>

bool sv_cuda_check(struct sv_cuda *, cudaError_t rc, const char *)
{
    return rc == cudaSuccess;
}
int sv_cuda_try(cudaError_t, struct sv_err *, const char *)
{
    return SV_OK;
}
/* Addresses alone: nothing is read. */
static uint8_t *const somewhere = (uint8_t *)0x10000;
int sv_cuda_alloc(struct sv_dev *, void **out, size_t, struct sv_err *)
{
    *out = somewhere;
    return SV_OK;
}
void sv_cuda_free(struct sv_dev *, void *)
{
}
void sv_cuda_moe_combine(struct sv_dev *, const struct sv_p_moe_combine *) /* asks for none */
{
}

namespace
{
const int32_t ks[] = {64, 1024, 4096, 12288, 28672}, outs[] = {64, 1024, 4096, 6144, 151936};

void products(sv_cuda &cu)
{
    for (int mode = SV_GEMM_ACT; mode <= SV_GEMM_GATED; mode++)
        for (int32_t k : ks)
            for (int32_t n_out : outs)
                for (int32_t i = 6; i < 6 * 129; i++) {
                    sv_gemm_args a = {};
                    a.mode = mode;
                    a.n_rows = i / 6;
                    a.codes = i % 6 ? i % 6 + 3 : 0;
                    a.n_parts = mode == SV_GEMM_GATED ? 2 : 1;
                    for (int p = 0; p < a.n_parts; p++) {
                        a.part[p].w = somewhere;
                        a.part[p].n_out = n_out;
                        a.part[p].n_bands = sv_tiles(n_out);
                    }
                    sv_gemm_lay_blocks(&a, SV_PORTABLE_BLOCK);
                    a.split =
                        sv_split_make(a.split.n_blocks, sv_tiles(k), cu.n_sms * GPU_BLOCKS, false);
                    sv_gemm_portable(&cu, somewhere, k, k, &a);
                }
}

void attention(sv_cuda &cu, int32_t from, int32_t to)
{
    for (int32_t hd : {64, -64, 128, -128}) /* below 0: of e4m3 */
        for (int32_t n_segs = from; n_segs <= to; n_segs *= 2)
            for (int32_t each : {1, 2, 16, 64})
                for (bool settled : {false, true}) {
                    sv_p_attention p = {};
                    p.rows.n_segs = n_segs;
                    p.rows.n_rows = n_segs * each;
                    p.q = p.out = somewhere;
                    p.n_heads = 32;
                    p.ldq = p.ldo = 32 * abs(hd);
                    p.kv.k = p.kv.v = somewhere;
                    p.kv.dtype = hd < 0 ? SV_F8 : SV_BF16;
                    p.kv.n_pages = 1024;
                    p.kv.page_size = 16;
                    p.kv.n_kv_heads = 8;
                    p.kv.head_dim = abs(hd);
                    p.scale = 0.1f;
                    cu.settled = settled;
                    cu.pass++;
                    sv_cuda_attention((sv_dev *)(void *)&cu, &p);
                }
}

/* More sequences than fit are refused with the number that does, and so many are launched. */
int sequences(sv_cuda &cu, sv_dev_limits lim)
{
    struct sv_err err = {};
    int32_t n = 0;
    lim.max_segs = lim.max_rows;
    const char *at = sv_cuda_attn_reserve(&cu, &lim, &err) ? strstr(err.msg, "at most ") : NULL;
    n = at ? atoi(at + 8) : 0;
    lim.max_segs = n + 1;
    if (n < 1000 || !sv_cuda_attn_reserve(&cu, &lim, &err))
        return fprintf(stderr, "sequences that do not fit: %s\n", err.msg);
    lim.max_segs = n;
    if (sv_cuda_attn_reserve(&cu, &lim, &err))
        return fprintf(stderr, "%d sequences: %s\n", n, err.msg);
    attention(cu, n, n);
    fprintf(stderr, "at most %d sequences\n", n);
    return 0;
}

/* Attention over them, and each head's products. */
void latents(sv_cuda &cu)
{
    sv_weight w[2] = {};
    for (int32_t n_segs = 1; n_segs <= 512; n_segs *= 2)
        for (int32_t each : {1, 16, 64}) {
            sv_p_attention p = {};
            p.rows.n_segs = n_segs;
            p.rows.n_rows = n_segs * each;
            p.q = p.out = somewhere;
            p.n_heads = 32;
            p.ldq = p.ldo = 32 * SV_ATTN_LATENT_WIDTH;
            p.kv.k = somewhere;
            p.kv.dtype = SV_BF16;
            p.kv.n_pages = 1024;
            p.kv.page_size = 16;
            p.kv.n_kv_heads = 1;
            p.kv.head_dim = SV_ATTN_LATENT_WIDTH;
            p.v_dim = SV_ATTN_LATENT;
            p.scale = 0.1f;
            sv_cuda_attention((sv_dev *)(void *)&cu, &p);
            sv_p_head_products h = {};
            h.n_rows = p.rows.n_rows;
            h.x = h.y = somewhere;
            h.ldx = h.ldy = 1024;
            h.x_stride = h.y_stride = 512;
            h.w.n = 2;
            h.w.rows = h.w.cols = 512;
            h.w.w = w;
            for (sv_weight &m : w) {
                m.data = somewhere;
                m.fmt.elem = SV_BF16;
                m.rows = m.cols = 512;
            }
            sv_cuda_head_products((sv_dev *)(void *)&cu, &h);
        }
}

void experts(sv_cuda &cu, sv_format fmt)
{
    sv_weight w[128] = {};
    for (int i = 0; i < 128; i++) {
        w[i].data = somewhere + i * 4096;
        w[i].fmt = fmt;
        w[i].rows = w[i].cols = 2048;
    }
    for (int32_t n = 1; n <= 4096; n++) {
        sv_p_moe_gate_up g = {};
        sv_p_moe_down d = {};
        g.routes.n_rows = n;
        g.routes.n_experts = 128;
        g.routes.k = 8;
        g.gate.n = 128;
        g.gate.rows = g.gate.cols = 2048;
        g.gate.w = w;
        g.up = g.gate;
        d.routes = g.routes;
        d.down = g.gate;
        sv_cuda_moe_gate_up((sv_dev *)(void *)&cu, &g);
        sv_cuda_moe_down((sv_dev *)(void *)&cu, &d);
    }
}

void delta_rules(sv_cuda &cu)
{
    for (int act : {SV_F32, SV_BF16})
        for (int32_t d : {64, 128})
            for (int32_t n : {1, 16, 4096}) {
                sv_p_gdn_scan p = {};
                p.rows.n_segs = 1;
                p.rows.n_rows = n;
                p.shape.n_k_heads = 16;
                p.shape.n_v_heads = 32;
                p.shape.k_dim = p.shape.v_dim = d;
                p.shape.max_block = 16;
                cu.act = (sv_dtype)act;
                sv_cuda_gdn_scan((sv_dev *)(void *)&cu, &p);
                sv_p_gdn_conv c = {};
                c.rows = p.rows;
                c.shape = p.shape;
                sv_cuda_gdn_conv((sv_dev *)(void *)&cu, &c);
            }
}

/* Kernels by the names that this program's own symbols have. */
int list(void)
{
    char path[512], line[4096], name[4096], kind;
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0)
        return 1;
    path[n] = 0;
    unsigned long at, base = 0;
    for (int pass = 0; pass < 2; pass++) {
        FILE *nm = popen((std::string("nm -C ") + path).c_str(), "r");
        while (nm && fgets(line, sizeof line, nm)) {
            if (sscanf(line, "%lx %c %4095[^\n]", &at, &kind, name) != 3)
                continue;
            if (pass == 0 &&
                std::string(name) == "sv_cuda_alloc(sv_dev*, void**, unsigned long, sv_err*)")
                base = (unsigned long)(uintptr_t)&sv_cuda_alloc - at;
            if (pass == 0 || ((kind | 32) != 't' && (kind | 32) != 'w'))
                continue;
            const emu_room &room = emu_room_of((const void *)(uintptr_t)(base + at));
            if (room.asked)
                printf("%s\t%zu\n",
                       std::string(name).substr(0, std::string(name).find('(')).c_str(),
                       room.most > 48 * 1024 && room.most > room.asked ? room.most : room.asked);
        }
        if (!nm || pclose(nm))
            return 1;
    }
    return 0;
}
} // namespace

int main(void)
{
    static sv_cuda cu;
    static sv_cuda_gemm_state g;
    sv_dev_limits lim = {};
    lim.max_rows = 32768;
    lim.max_heads = 32;
    lim.max_head_dim = 128;
    lim.max_positions = 32768;
    lim.by_head = true;
    emu_looks = true;
    cu.act = SV_BF16;
    cu.gemm = &g;
    cu.n_sms = EMU_SHARED_KIB == 64 ? 304 : 256;
    cu.smem_block = EMU_SHARED_KIB * 1024;
    if (sv_gemm_portable_open(&cu, NULL) || sv_cuda_attn_reserve(&cu, &lim, NULL) ||
        sv_cuda_moe_open(&cu, NULL))
        return 1;
    products(cu);
    attention(cu, 1, 512);
    latents(cu);
    for (const sv_format &fmt :
         {sv_format{SV_BF16, 0, 0, SV_F32}, sv_format{SV_U8, 1, 32, SV_U8},
          sv_format{SV_F8, 1, SV_TILE, SV_BF16}, sv_format{SV_U8, 1, SV_TILE, SV_BF16}})
        experts(cu, fmt);
    delta_rules(cu);
    const int rc = list();
    return rc ? rc : sequences(cu, lim);
}
