/*
 * images.c - see images.h.
 *
 * Called by engine.c (open, submit), seq.c, sched.c, fill.c and, before each step, step.c. Pages,
 * chunks and states are indexed by token; only the rotation uses the positions of images. Must not:
 * let a row depend on when its image was made.
 */
#include "engine/images.h"

#include "engine/engine.h"

#include <string.h>

/* Patches of an image: a pass over so many takes half a gigabyte. */
enum { MAX_PATCHES = 16384 };

bool sv_engine_takes_images(const struct sv_engine *engine, const char **why)
{
    if (why && !engine->images.open)
        *why = engine->images.refusal;
    return engine->images.open;
}

/* ---------------------------------------------------------------- an engine */

static int refuse(struct sv_image_intake *m, const char *why)
{
    snprintf(m->refusal, sizeof m->refusal, "%s", why);
    return SV_OK;
}

int sv_images_open(struct sv_engine *e, const char *dir, struct sv_err *err)
{
    struct sv_image_intake *m = &e->images;
    struct sv_err why = {0};
    if (e->model.no_tower)
        return refuse(m, e->model.no_tower);
    if (e->ranks) /* followers do not get the tower's rows */
        return refuse(m, "a record of plans has no images");
    const struct sv_vision_config *v = &e->model.tower->cfg;
    if (sv_vision_prep_load(dir, &m->prep, &why))
        return refuse(m, why.msg);
    if (m->prep.patch != v->patch || m->prep.merge != v->merge || m->prep.temporal != v->temporal)
        return refuse(m, "the image processor's patches are not those of the vision tower");
    m->known = sv_arena_alloc(&e->arena, SV_KNOWN_IMAGES * sizeof *m->known);
    m->rows = sv_arena_alloc(&e->arena, (size_t)e->batch.max_rows * sizeof *m->rows);
    if (!m->known || !m->rows)
        return sv_fail(err, SV_ENOMEM, -1, "tables of images");
    memset(m->known, 0, SV_KNOWN_IMAGES * sizeof *m->known);
    m->open = true;
    return SV_OK;
}

int64_t sv_images_bytes(const struct sv_engine *e)
{
    if (!e->images.open)
        return 0;
    const struct sv_tower *t = e->model.tower;
    const int64_t n = e->images.prep.max_pixels / ((int64_t)t->cfg.patch * t->cfg.patch);
    const int32_t most = n < MAX_PATCHES ? (int32_t)n : MAX_PATCHES;
    return (int64_t)(sv_tower_pass_bytes(t, e->batch.max_rows, most) +
                     sv_tower_rows_bytes(t, most));
}

/* The table entry of an image. Its key is the same for images of the same hash, and for no others.
 * An image whose entry was reused gets a new key, so its cached prefixes are not found any more. */
static struct sv_image_key *place_of(struct sv_engine *e, const uint64_t hash[2])
{
    struct sv_image_intake *m = &e->images;
    struct sv_image_key *k = &m->known[hash[0] % SV_KNOWN_IMAGES];
    if (k->key && memcmp(k->hash, hash, sizeof k->hash) == 0)
        return k;
    if (m->last_key == INT32_MIN) { /* keys start again */
        sv_cache_flush(&e->cache);
        memset(m->known, 0, SV_KNOWN_IMAGES * sizeof *m->known);
        m->last_key = 0;
    }
    *k = (struct sv_image_key){.hash = {hash[0], hash[1]}, .key = --m->last_key};
    return k;
}

/* ---------------------------------------------------------------- a request */

/* The shared image of another request, or a new one, which takes the pixels. */
static struct sv_picture *picture_at(struct sv_image_key *place, const uint64_t salt[2],
                                     struct sv_pixels *px)
{
    struct sv_picture *p = place->shown;
    if (!p || memcmp(p->salt, salt, sizeof p->salt) != 0) {
        p = sv_calloc(1, sizeof *p);
        if (!p)
            return NULL;
        *p = (struct sv_picture){.salt = {salt[0], salt[1]}, .place = place, .pixels = *px};
        px->rgb = NULL;
        place->shown = p;
    }
    p->n_users++;
    return p;
}

static void leave_picture(struct sv_picture *p, struct sv_engine *e)
{
    if (!p || --p->n_users)
        return;
    if (p->place->shown == p)
        p->place->shown = NULL;
    sv_pixels_free(&p->pixels);
    e->images.n_held -= p->rows != NULL;
    sv_dev_free(e->dev, p->rows);
    sv_free(p);
}

/* The choices of a prompt are submitted one after the other: an image is compared with the previous
 * request's before it is hashed, which takes ten times as long. */
static bool is_as_before(struct sv_seq_image *to, const struct sv_engine *e, int32_t i,
                         const struct sv_image *from, const uint64_t salt[2])
{
    const struct sv_images *before = e->sched.tail ? e->sched.tail->images : NULL;
    struct sv_picture *p = before && i < before->n ? before->image[i].shown : NULL;
    if (!p || !p->pixels.rgb || p->pixels.width != from->width ||
        p->pixels.height != from->height || memcmp(p->salt, salt, sizeof p->salt) != 0 ||
        memcmp(p->pixels.rgb, from->rgb, 3 * (size_t)from->width * (size_t)from->height) != 0)
        return false;
    to->shown = p;
    to->key = before->image[i].key;
    p->n_users++;
    return true;
}

/* Finds or makes the shared image and its key. */
static int find_picture(struct sv_seq_image *to, struct sv_engine *e, const struct sv_image *from,
                        int32_t width, int32_t height, const uint64_t salt[2], struct sv_err *err)
{
    struct sv_pixels px;
    uint64_t hash[2];
    int rc = sv_pixels_resize(from->rgb, from->width, from->height, width, height, &px, err);
    if (rc)
        return rc;
    sv_pixels_hash(&px, &e->images.prep, hash);
    struct sv_image_key *place = place_of(e, hash);
    to->key = place->key;
    to->shown = picture_at(place, salt, &px);
    sv_pixels_free(&px);
    return to->shown ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory");
}

/* Image number i of a request. */
static int make_one(struct sv_seq_image *to, struct sv_engine *e, int32_t i,
                    const struct sv_image *from, const uint64_t salt[2], struct sv_err *err)
{
    const struct sv_tower *t = e->model.tower;
    if (!from->rgb || from->width < 1 || from->height < 1)
        return sv_fail(err, SV_EINVAL, -1, "%d x %d pixels", from->width, from->height);
    int32_t width = 0, height = 0;
    int rc = sv_vision_prep_fit(&e->images.prep, from->width, from->height, &width, &height, err);
    const int32_t w = width / t->cfg.patch, h = height / t->cfg.patch;
    if (!rc && ((int64_t)w * h > MAX_PATCHES || w > t->max_side || h > t->max_side))
        rc = sv_fail(err, SV_EINVAL, -1,
                     "%d x %d patches; at most %d are supported (size.longest_edge of "
                     "preprocessor_config.json makes images smaller)",
                     w, h, MAX_PATCHES);
    const bool fits = !rc && width == from->width && height == from->height;
    if (!rc && !(fits && is_as_before(to, e, i, from, salt)))
        rc = find_picture(to, e, from, width, height, salt, err);
    if (rc)
        return rc;
    to->per_line = w / t->cfg.merge;
    to->n_rows = h / t->cfg.merge * to->per_line;
    to->plane_bytes = sv_tower_plane_bytes(t, h * w);
    return SV_OK;
}

int sv_images_new(struct sv_images **images, struct sv_engine *e, const struct sv_request *r,
                  struct sv_err *err)
{
    *images = NULL;
    if (r->n_images < 0 || (r->n_images && !r->images))
        return sv_fail(err, SV_EINVAL, -1, "images are needed for n_images %d", r->n_images);
    if (!r->n_images)
        return SV_OK;
    if (!e->images.open)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "images are not supported for %s here: %s",
                       sv_arch_name(e->model.cfg.arch), e->images.refusal);
    if (r->n_images > e->context)
        return sv_fail(err, SV_EINVAL, -1, "%d images do not fit into the context of %d",
                       r->n_images, e->context);
    const size_t n_bytes = sizeof **images + (size_t)r->n_images * sizeof(*images)->image[0];
    struct sv_images *m = sv_calloc(1, n_bytes);
    if (!m)
        return sv_fail(err, SV_ENOMEM, -1, "%d images", r->n_images);
    m->engine = e;
    m->image_token = e->model.cfg.vision.image_token;
    m->n_deep = e->model.tower->cfg.n_deep;
    int rc = SV_OK;
    while (!rc && m->n < r->n_images) {
        rc = make_one(&m->image[m->n], e, m->n, &r->images[m->n], r->cache_salt, err);
        if (rc)
            sv_err_prefix(err, "image %d", m->n);
        m->n++;
    }
    if (rc)
        sv_images_free(m);
    else
        *images = m;
    return rc;
}

void sv_images_free(struct sv_images *images)
{
    for (int32_t i = 0; images && i < images->n; i++)
        leave_picture(images->image[i].shown, images->engine);
    sv_free(images);
}

/* ---------------------------------------------------------------- places and positions */

int sv_images_place(struct sv_images *m, const int32_t *ids, int32_t *n, struct sv_err *err)
{
    int64_t at = 0, behind = 0;
    int32_t k = 0;
    for (int32_t i = 0; i < *n; i++) {
        if (ids[i] != m->image_token) {
            at++;
            continue;
        }
        if (k < m->n && at < INT32_MAX / 2) {
            struct sv_seq_image *g = &m->image[k];
            const int32_t lines = g->n_rows / g->per_line;
            g->first = (int32_t)at;
            g->position = (int32_t)(at + behind);
            behind += (lines > g->per_line ? lines : g->per_line) - g->n_rows;
            g->behind = (int32_t)behind;
            at += g->n_rows;
        }
        k++;
    }
    if (k != m->n)
        return sv_fail(err, SV_EINVAL, -1,
                       "the prompt has %d image tokens (%d), the request %d "
                       "images",
                       k, m->image_token, m->n);
    if (at > INT32_MAX / 2)
        return sv_fail(err, SV_EINVAL, -1, "the prompt has %lld tokens", (long long)at);
    *n = (int32_t)at;
    return SV_OK;
}

void sv_images_expand(const struct sv_images *m, const int32_t *ids, int32_t n, int32_t *tokens,
                      int32_t *keys)
{
    int32_t at = 0;
    for (int32_t k = 0; k < m->n; k++) {
        const struct sv_seq_image *g = &m->image[k];
        for (; at < g->first; at++)
            tokens[at] = keys[at] = *ids++;
        for (; at < g->first + g->n_rows; at++) {
            tokens[at] = m->image_token;
            keys[at] = g->key;
        }
        ids++;
    }
    for (; at < n; at++)
        tokens[at] = keys[at] = *ids++;
}

int32_t sv_images_ready(const struct sv_images *m, int32_t from)
{
    for (int32_t i = 0; m && i < m->n; i++) {
        const struct sv_seq_image *g = &m->image[i];
        if (!g->shown->rows && g->first + g->n_rows > from)
            return g->first > from ? g->first : from;
    }
    return INT32_MAX;
}

void sv_images_shift(const struct sv_images *m, int32_t index, int32_t shift[3])
{
    const struct sv_seq_image *g = NULL;
    for (int32_t i = 0; m && i < m->n && m->image[i].first <= index; i++)
        g = &m->image[i];
    shift[0] = shift[1] = shift[2] = g ? g->behind : 0;
    if (!g || index - g->first >= g->n_rows)
        return;
    const int32_t in = index - g->first;
    shift[0] = g->position - index;
    shift[1] = shift[0] + in / g->per_line;
    shift[2] = shift[0] + in % g->per_line;
}

/* ---------------------------------------------------------------- the tower */

static struct sv_picture *waited_for(struct sv_seq *q)
{
    const int32_t from = q->n_committed + q->n_rows_ahead;
    struct sv_images *m = q->images;
    for (int32_t i = 0; m && i < m->n && q->slot >= 0 && from < q->n_prefill; i++)
        if (!m->image[i].shown->rows && m->image[i].first + m->image[i].n_rows > from)
            return m->image[i].shown;
    return NULL;
}

/* Runs the tower. The patches' memory is freed afterwards. */
static int make_rows(struct sv_engine *e, struct sv_picture *shown)
{
    const struct sv_tower *t = e->model.tower;
    struct sv_patches p;
    void *rows = NULL;
    int rc = sv_patches_make(&e->images.prep, &shown->pixels, &p, NULL);
    if (!rc)
        rc = sv_dev_alloc(e->dev, &rows, sv_tower_rows_bytes(t, p.grid_h * p.grid_w), NULL);
    if (!rc)
        rc = sv_tower_run(t, e->batch.max_rows, p.grid_h, p.grid_w, p.values, rows, NULL);
    sv_patches_free(&p);
    if (rc) {
        sv_dev_free(e->dev, rows);
        return rc;
    }
    shown->rows = rows;
    e->images.n_held++;
    sv_pixels_free(&shown->pixels);
    return SV_OK;
}

static bool has_rows(const struct sv_images *m)
{
    int32_t i = 0;
    while (m && i < m->n && !m->image[i].shown->rows)
        i++;
    return m && i < m->n;
}

/* Whether another sequence has all its images' rows, so that its end will free memory. */
static bool another_ends(const struct sv_engine *e, const struct sv_seq *than)
{
    struct sv_seq *q = e->sched.head;
    while (q && (q == than || q->slot < 0 || !has_rows(q->images) || waited_for(q)))
        q = q->next;
    return q != NULL;
}

/* Computes one image at a time, so that other sequences wait for at most one between two steps. */
void sv_images_prepare(struct sv_engine *e)
{
    const int64_t start_us = sv_clock_us();
    struct sv_seq *q = e->images.open ? e->sched.head : NULL;
    struct sv_picture *g = NULL;
    while (q && (q->state != SV_SEQ_PREFILL || q->cancel || !(g = waited_for(q))))
        q = q->next;
    if (!q)
        return;
    const bool may_wait = another_ends(e, q);
    if (may_wait && e->images.n_full && e->images.n_held >= e->images.n_full)
        return;
    const int rc = make_rows(e, g);
    e->images.n_full = rc == SV_ENOMEM && may_wait ? e->images.n_held : 0;
    if (rc && !e->images.n_full) {
        sv_seq_finish(q, SV_FINISH_ERROR, "no memory for the rows of an image");
        sv_deferred_end(e, q);
        sv_sched_release(&e->sched, &e->cache, q);
    }
    e->stats.forward_us += sv_clock_us() - start_us;
}

/* ---------------------------------------------------------------- a step */

static void fill_rows(struct sv_image_intake *to, const struct sv_images *m,
                      const struct sv_plan_seg *g)
{
    for (int32_t i = 0; i < m->n; i++) {
        const struct sv_seq_image *k = &m->image[i];
        const int32_t end = g->first + g->n_rows, stop = k->first + k->n_rows,
                      from = k->first > g->first ? k->first : g->first,
                      to_row = stop < end ? stop : end;
        if (from >= to_row)
            continue;
        SV_REQUIRE(k->shown->rows); /* the plan has no rows of other images */
        to->rows[to->n_rows++] = (struct sv_image_rows){.row0 = g->row0 + from - g->first,
                                                        .n_rows = to_row - from,
                                                        .rows = (const char *)k->shown->rows +
                                                                k->plane_bytes / (size_t)k->n_rows *
                                                                    (size_t)(from - k->first),
                                                        .n_deep = m->n_deep,
                                                        .deep_stride = k->plane_bytes};
    }
}

void sv_images_fill(struct sv_engine *e, const struct sv_plan_seg *g)
{
    const struct sv_seq *q = e->sched.slot[g->slot];
    const bool prompt = !e->plan.given && g->kind == SV_SEG_PREFILL;
    if (!e->images.open)
        return;
    int32_t *shift = e->batch.row_shift.host + 3 * (size_t)g->row0;
    const struct sv_images *m = e->plan.given ? NULL : q->images;
    for (int32_t j = 0; j < g->n_rows; j++) /* the answer comes after all images */
        sv_images_shift(m, prompt ? g->first + j : INT32_MAX, shift + 3 * j);
    if (m && prompt)
        fill_rows(&e->images, m, g);
}
