/*
 * test_jinja_cost.c - templates that make the interpreter work: each ends at a limit, and soon.
 *
 * Run by the test runner. A step of the limit has to stand for a bounded amount of work wherever a
 * template can choose how much there is.
 */
#include "jinja/jinja.h"
#include "testing.h"

#include <string.h>

static int render(const char *text, size_t n, const json_t *context,
                  const struct sv_template_opts *o, struct sv_buf *out, struct sv_err *err)
{
    struct sv_template *t;
    int rc = sv_template_parse(&t, text, n, err);

    if (rc == SV_OK)
        rc = sv_template_render(t, context, o, out, err);
    sv_template_free(t);
    return rc;
}

/* Two strings of 5 MB that differ at their end, a list of 200,000 items; the context has a dict of
 * 20,000 keys called d. */
#define LONG                                                                                       \
    "{% set s = 'a' * 5000 * 1000 %}{% set t = s + 'b' %}{% set u = s + 'c' %}"                    \
    "{% set l = [0] * 1000 * 200 %}{% set ns = namespace(s=s, t=t) %}"
#define LOOPS(body)                                                                                \
    "{% for o in range(99999) %}{% for p in range(99999) %}" body "{% endfor %}{% endfor %}"
/* A tuple of 38 levels, each of which holds the one below twice. */
#define SHARED(name)                                                                               \
    "{% set ns = namespace(t=(1,)) %}{% for i in range(38) %}{% set ns.t = (ns.t, ns.t) "          \
    "%}{% endfor %}{% set " name " = ns.t %}"
/* A tuple nested 300,000 levels deep. */
#define TEN(v) "((((((((((" v ",),),),),),),),),),)"
#define DEEP                                                                                       \
    "{% set ns = namespace(t=(1,)) %}{% for i in range(30000) %}{% set ns.t = " TEN(               \
        "ns.t") " %}{% endfor %}"
static const char *const nested[] = {
    DEEP "{{ {ns.t: 1} | length }}", DEEP "{{ {}[ns.t] }}",
    DEEP "{{ ns.t == (ns.t,) }}",    DEEP "{{ ns.t < (ns.t,) }}",
    DEEP "{{ ns.t is filter }}",     DEEP "{{ [ns.t] | unique | list }}",
};

static const char *const hashed[] = {
    SHARED("a") "{{ {a: 1} | length }}",
    SHARED("a") "{{ [a] | unique | list }}",
    SHARED("a") "{{ {}[a] }}",
    SHARED("a") "{{ {}.get(a) }}",
    SHARED("a") "{{ a is filter }}",
    LONG LOOPS("{% set x = {t: 1} %}"),
    LONG LOOPS("{{ d[t] }}"),
    LONG LOOPS("{{ d.get(t) }}"),
    LONG LOOPS("{{ t in d }}"),
    LONG "{% set e = {t: 1} %}" LOOPS("{% set x = e.copy() %}"),
    LONG "{% set e = {t: 1} %}" LOOPS("{% set x = dict(e) %}"),
    LONG LOOPS("{% set x = [t] | unique | list %}"),
    LONG LOOPS("{% set x = [t] | groupby(0) | list %}"),
    LONG LOOPS("{{ t is filter }}{{ '%(x)s' % {t: 1, 'x': 2} }}"),
};

static const char *const compared[] = {
    SHARED("a") SHARED("b") "{{ a == b }}",
    SHARED("a") SHARED("b") "{{ a < b }}",
    SHARED("a") SHARED("b") "{{ a in [b] }}",
    SHARED("a") SHARED("b") "{{ [b].index(a) }}",
    SHARED("a") SHARED("b") "{{ [a, b] | sort | length }}",
    SHARED("a") SHARED("b") "{{ [a, b] | max | length }}",
    LONG LOOPS("{% if t == u %}{% endif %}"),
    LONG LOOPS("{% if t != u %}{% endif %}"),
    LONG LOOPS("{% if t < u %}{% endif %}"),
    LONG LOOPS("{{ [t] == [u] }}"),
    LONG LOOPS("{{ t in [u] }}"),
    LONG LOOPS("{{ [u].count(t) }}"),
    LONG LOOPS("{{ t is eq(u) }}{{ t is lt(u) }}"),
    LONG LOOPS("{% set x = loop.changed(t) %}{% set x = loop.changed(u) %}"),
    LONG "{% set m = [t, u] * 100 %}" LOOPS("{% set x = m | sort(case_sensitive=true) %}"),
    LONG "{% set m = [t, u] * 100 %}" LOOPS("{% set x = m | max(case_sensitive=true) %}"),
    LONG "{% set m = [t, u] * 100 %}" LOOPS("{% set x = m | select('eq', s + 'b') | list %}"),
    LONG "{% set m = {t: 1, u: 1} %}" LOOPS("{% set x = m | dictsort(true) %}"),
    LONG
    "{% set m = {t: 1, u: 1} %}{{ m | tojson(sort_keys=true) | length }}" LOOPS("{{ m == d }}"),
};

static const char *const scanned[] = {
    LONG LOOPS("{{ u in t }}"),
    LONG LOOPS("{{ 'ab' * 100 in t }}"),
    LONG LOOPS("{{ t.startswith(s) }}"),
    LONG LOOPS("{{ t.endswith(u) }}{{ t.endswith(t[1:]) }}"),
    LONG
    "{% set m = ([s + 'x'] * 1000 * 100) | list %}{% set ns.f = ((s + 'x',) * 1000 * 100) %}" LOOPS(
        "{{ t.startswith(ns.f) }}"),
    LONG LOOPS("{{ t.removesuffix(u) | length }}"),
    LONG LOOPS("{{ t.find('c') }}"),
    LONG LOOPS("{{ t.find('b') }}"),
    LONG LOOPS("{{ t.rfind('c') }}"),
    "{% set s = 'a' * 65535 %}{% set t = 'b' + 'a' * 30000 %}" LOOPS("{{ s.rfind(t) }}"),
    "{% set s = 'a' * 65535 %}{% set t = 'b' + 'a' * 30000 %}" LOOPS("{{ s.find(t) }}"),
    "{% set s = 'a' * 65535 %}{% set t = 'a' * 100 + 'b' + 'a' * 100 %}" LOOPS("{{ s.find(t) }}"),
    LONG LOOPS("{{ t.count('c') }}"),
    "{% set s = 'a' * 50000 %}" LOOPS("{{ s.count('a') }}"), /* ASan's memmem reads all of it */
    LONG LOOPS("{{ t.partition('c') | length }}"),
    LONG LOOPS("{{ t.rpartition('c') | length }}"),
    LONG LOOPS("{% set x = t.split('c') %}"),
    LONG LOOPS("{% set x = t.rsplit('c') %}"),
    LONG LOOPS("{% set x = t.split() %}"),
    LONG LOOPS("{% set x = t.rsplit() %}"),
    LONG LOOPS("{% set x = t.splitlines() %}"),
    LONG LOOPS("{% set x = t.replace('c', 'd') %}"),
    LONG LOOPS("{% set x = t.strip('a') %}"),
    LONG LOOPS("{% set x = 'x'.strip(t) %}"),
    "{% set s = ' ' * 5000 * 1000 %}" LOOPS("{% set x = s.strip() %}"),
    LONG LOOPS("{{ t | length }}"),
    LONG LOOPS("{{ t | wordcount }}"),
    LONG LOOPS("{{ t[4999999] }}"),
    LONG LOOPS("{{ t[-1] }}"),
    LONG LOOPS("{% set x = t[4999999:] %}"),
    LONG LOOPS("{% set x = t.find('a', 4999990) %}"),
    LONG LOOPS("{{ s.isalpha() }}"),
    LONG LOOPS("{{ s.islower() }}"),
    LONG LOOPS("{{ s is lower }}"),
    LONG LOOPS("{{ s.isascii() }}"),
};

static const char *const copied[] = {
    LONG LOOPS("{% set x = t.upper() %}"),
    LONG LOOPS("{% set x = t | escape %}"),
    LONG LOOPS("{% set x = t | tojson %}"),
    LONG LOOPS("{% set x = [t] | string %}"),
    LONG LOOPS("{% set x = t ~ u %}"),
    LONG LOOPS("{% set x = t[::2] %}"),
    LONG LOOPS("{% set x = l[::2] %}"),
    LONG LOOPS("{% set x = l + l %}"),
    LONG LOOPS("{% set x = l | join %}"),
    LONG LOOPS("{% set x = l | string %}"),
    LONG LOOPS("{% set x = [''] * 100 %}{% set y = ''.join(x * 100) %}"),
    LONG "{% set m = [''] * 1000 * 200 %}" LOOPS("{% set x = ''.join(m) %}"),
    LONG "{% set m = [''] * 1000 * 200 %}" LOOPS("{% set x = m | join %}"),
    LONG LOOPS("{% set x = l.pop(0) %}{% set ns.x = l.copy() %}"),
    LONG LOOPS("{{ '%s' % t | length }}"),
    LONG LOOPS("{% set x = '%%' * 1000 * 100 %}{{ (x % ()) | length }}"),
    "{% set m = [1.2345678901234567e-300] * 1000 * 200 %}" LOOPS("{% set x = m | string %}"),
    "{% set m = [1.2345678901234567e-300] * 1000 * 200 %}" LOOPS("{% set x = m | tojson %}"),
    "{% set m = '%.0g' * 1000 * 100 %}{% set a = (1e-300,) * 1000 * 100 %}" LOOPS(
        "{% set x = m % a %}"),
    "{% set ns = namespace(l=[1] * 10000) %}{% for i in range(90) %}{% set ns.l = [ns.l] %}"
    "{% endfor %}" LOOPS("{% set x = ns.l | tojson(indent=0) %}"),
    SHARED("a") "{{ a | tojson }}",
    SHARED("a") "{{ a }}",
    SHARED("a") "{{ a ~ '' }}",
    SHARED("a") "{{ '%s' % (a,) }}",
    SHARED("a") "{{ [a] | join }}",
    SHARED("a") "{{ a | string | length }}",
    "{% set f = '%n' * 1000 * 1000 %}" LOOPS("{% set x = strftime_now(f) %}"),
    "{% set f = '%Z' * 1000 * 1000 %}" LOOPS("{% set x = strftime_now(f) %}"),
    "{% set f = '%' + '_' * 1000 * 1000 + 'd' %}" LOOPS("{% set x = strftime_now('%Z' + f[3:]) %}"),
    "{% set j = '[' + '{},' * 1000 * 1000 + '{}]' %}" LOOPS("{% set x = j | from_json %}"),
    "{% set j = '[\"' + 'a' * 1000 * 1000 + '\"]' %}" LOOPS("{% set x = j | from_json %}"),
};

static const char *const named[] = {
    LOOPS("{% set x = dict(**d) %}"),
    LOOPS("{% set x = namespace(**d) %}"),
    "{% macro m() %}{{ kwargs | length }}{% endmacro %}" LOOPS("{{ m(**d) }}"),
    "{% set f = '{x19999}' * 1000 %}" LOOPS("{% set x = f.format(**d) %}"),
    "{% set ns = namespace(x=1) %}{% set ns.n = ns %}{% set f = '{0' + '.n' * 1000 * 1000 + '.x}' %}"
    "{% for i in range(99999) %}{{ f.format(ns) }}{% endfor %}",
    LOOPS("{% set ns = namespace(**d) %}{% set ns.y = 1 %}"),
};

static json_t *context_with_keys(int n)
{
    json_t *c = json_object(), *d = json_object();

    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%05d", i);
        json_object_set_new(d, name, json_integer(i));
    }
    json_object_set_new(c, "d", d);
    return c;
}

#define MOST_MS 5000 /* processor time; a loaded machine and ASan included */

/* Fails with an error that has these words, soon. */
static void check_error(const char *text, const json_t *context, const char *words)
{
    const struct sv_template_opts o = {.max_steps = 600000};
    struct sv_buf out;
    struct sv_err err = {0};
    int64_t start_ns = sv_clock_thread_ns(), ms;
    int rc;

    sv_buf_init(&out);
    rc = render(text, strlen(text), context, &o, &out, &err);
    ms = (sv_clock_thread_ns() - start_ns) / 1000000;
    if (rc == SV_OK || !strstr(err.msg, words))
        fail_msg("%.300s: %s", text, rc ? err.msg : "it was rendered");
    if (ms > MOST_MS)
        fail_msg("%lld ms for %.300s", (long long)ms, text);
    sv_buf_fini(&out);
}

static void check_cost(const char *text, const json_t *context)
{
    check_error(text, context, " more than "); /* as errors about limits say */
}

static void check_all(const char *const *texts, size_t n)
{
    json_t *c = context_with_keys(20000);

    for (size_t i = 0; i < n; i++)
        check_cost(texts[i], c);
    json_decref(c);
}

static void nested_tuples_end(void **state)
{
    (void)state;
    check_all(nested, sizeof nested / sizeof *nested);
}

static void hashes_are_counted(void **state)
{
    (void)state;
    check_all(hashed, sizeof hashed / sizeof *hashed);
}

static void comparisons_are_counted(void **state)
{
    (void)state;
    check_all(compared, sizeof compared / sizeof *compared);
}

static void scans_are_counted(void **state)
{
    (void)state;
    check_all(scanned, sizeof scanned / sizeof *scanned);
}

static void copies_are_counted(void **state)
{
    (void)state;
    check_all(copied, sizeof copied / sizeof *copied);
}

static void names_are_counted(void **state)
{
    (void)state;
    check_all(named, sizeof named / sizeof *named);
}

static void a_long_field_is_read_once(void **state)
{
    (void)state;
    check_error("{% set f = '{' + '[' * 2000 * 1000 + '!s}' %}{{ f.format(0) }}", NULL,
                "malformed field");
}

/* Names and parameters by the thousand come from the template's own text. */
static void many_names_are_counted(void **state)
{
    json_t *c = context_with_keys(20000);
    struct sv_buf b;

    (void)state;
    sv_buf_init(&b);
    for (int i = 0; i < 20000; i++)
        sv_buf_printf(&b, "{%% set v%d = 1 %%}", i);
    check_cost(b.data, c); /* each looks through those before */
    sv_buf_clear(&b);
    sv_buf_lit(&b, "{% macro m(");
    for (int i = 0; i < 4000; i++)
        sv_buf_printf(&b, "x%05d=1, ", i);
    sv_buf_lit(&b, "y=1) %}{{ kwargs | length }}{% endmacro %}" LOOPS("{{ m(**d) }}"));
    check_cost(b.data, c);
    sv_buf_clear(&b);
    sv_buf_lit(&b, "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{% if 0 %}");
    for (int i = 0; i < 4000; i++)
        sv_buf_printf(&b, "{{ v%d }}", i);
    sv_buf_lit(&b, "{% endif %}" LOOPS("{% set x = m() %}"));
    check_cost(b.data, c);
    sv_buf_clear(&b);
    sv_buf_lit(&b, "{% for i in range(99999) %}{% if not i %}");
    for (int i = 0; i < 4000; i++)
        sv_buf_printf(&b, "{%% set v%d = 1 %%}", i);
    sv_buf_lit(&b, "{% endif %}{% endfor %}");
    check_cost(b.data, c); /* each round begins without them */
    sv_buf_fini(&b);
    json_decref(c);
}

SV_TEST_MAIN(cmocka_unit_test(nested_tuples_end), cmocka_unit_test(hashes_are_counted),
             cmocka_unit_test(comparisons_are_counted), cmocka_unit_test(scans_are_counted),
             cmocka_unit_test(copies_are_counted), cmocka_unit_test(names_are_counted),
             cmocka_unit_test(a_long_field_is_read_once), cmocka_unit_test(many_names_are_counted))
