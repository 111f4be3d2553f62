# Makefile - builds Salvo, its tests and its fuzz targets; `make help` lists what it can do.
#
# Sources are found by name: src/<folder>/*.c and src/<folder>/<subfolder>/*.c go into libsalvo.a, src/cli/*.c on
# top of it into salvo, src/bench/*.c on top of both into salvo-bench. *_avx2.c, *_avx512.c and *_amx.c get their instruction set's flags (left out when
# the compiler lacks them, with SV_NO_AVX2, SV_NO_AVX512, SV_NO_AMX defined; all three also mean SV_NO_X86).
# CUDA=1 adds src/backend/{gpu,cuda}/*.cu, compiled by nvcc for sm_80 and sm_90; *_sm90.cu for sm_90a alone.
# MPI=1 lets ranks be processes (mpirun; Open MPI, else MPICH: MPI_PACKAGE=mpich).
# HIP=1 adds src/backend/{gpu,cuda,hip}/*.cu but *_sm90.cu and *_nvidia.cu, compiled by clang for gfx942 and gfx950.
# JITTER=1 with it builds kernels whose warps are late on purpose, into a folder jitter in the build folder; late-joins,
# the test of joins with those that ranks meet in.
# Tests: every tests/<area>/test_*.c (with CUDA=1 test_*.cu) is a program, tests/<area>/*.test.sh a script, other .c files helpers.
#
# Several builds of one checkout at the same time: `make B=build-mine`. Only some folders, while others do not
# compile yet: `make test ONLY='base token'`. Only some tests: `make test T=token` (part of a path or name).
# WERROR=-Werror, as CI has it: a warning is an error. By default it is not, as a newer compiler knows new ones.
#
# What is compiled again: an object whose source, headers or command have changed, whatever the command comes from
# (the compiler and its version, CFLAGS, CPPFLAGS, NVCCFLAGS, what is set below). Other changes of this file: none.

B ?= build
FLAVOUR ?= release
PREFIX ?= /usr/local
WERROR ?=
JOBS ?= 2
CUDA ?=
MPI ?=
HIP ?=
JITTER ?=
STATIC ?=
T ?=
SLOW ?= 1
ONLY ?=

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

# ---------------------------------------------------------------- first-time set-up

# At parse time, because what it installs decides the flags below.
QUICK_GOALS := clean format help setup check
ifneq ($(filter-out $(QUICK_GOALS),$(or $(MAKECMDGOALS),all)),)
ifeq ($(MAKELEVEL),0)
ifneq ($(shell tools/setup >&2 && echo ready),ready)
$(error the packages named above are missing)
endif
endif
endif

# ---------------------------------------------------------------- flavours

PIE :=
HARDENING :=
LINK_HARDENING :=
ifeq ($(FLAVOUR),release)
O := $(B)
FLAVOUR_FLAGS := -O3 -g
# The program can be loaded at any address. The code that reads foreign bytes is hardened as well; kernels are not.
PIE := -fPIE
HARDENING := -fstack-protector-strong -fstack-clash-protection -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
LINK_HARDENING := -pie -Wl,-z,relro,-z,now,-z,noexecstack
else ifeq ($(FLAVOUR),asan)
O := $(B)/asan
FLAVOUR_FLAGS := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
else ifeq ($(FLAVOUR),tsan)
O := $(B)/tsan
FLAVOUR_FLAGS := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
else ifeq ($(FLAVOUR),fuzz)
O := $(B)/fuzz
override CC := clang
FLAVOUR_FLAGS := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
else
$(error FLAVOUR=$(FLAVOUR): must be release, asan, tsan or fuzz)
endif

# CUDA kernels whose warps are late on purpose (jitter.cuh), beside the others.
ifeq ($(JITTER),1)
O := $(O)/jitter
endif

# ---------------------------------------------------------------- what this machine has

accepts = $(shell echo 'int x;' | $(CC) $(1) -x c -c -o /dev/null - 2>/dev/null && echo yes)
found = $(shell command -v $(1) >/dev/null 2>&1 && echo yes)
library = $(shell pkg-config $(1) $(2) 2>/dev/null || echo $(3))

# Nearly two hundred programs of tests take another linker half the time. Under ASan each of their tests is a process,
# which has the addresses of a third of a million descriptors to fill in unless they are fixed.
LINKER :=
ifneq ($(filter asan tsan,$(FLAVOUR)),)
LINKER := $(if $(filter asan,$(FLAVOUR)),-no-pie) $(if $(call found,ld.lld),-fuse-ld=lld)
endif

AVX2_FLAGS := -mavx2 -mfma -mf16c
AVX512_FLAGS := $(AVX2_FLAGS) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16
AMX_FLAGS := $(AVX512_FLAGS) -mamx-tile -mamx-bf16
HAVE_AVX2 := $(call accepts,$(AVX2_FLAGS))
# No outside bytes reach the kernels, and what threads share is divided in C that all kernels have: fuzzing and TSan,
# which instruments no masked load or store, do without those that take a compiler longest.
HAVE_AVX512 := $(if $(HAVE_AVX2),$(if $(filter fuzz tsan,$(FLAVOUR)),,$(call accepts,$(AVX512_FLAGS))))
HAVE_AMX := $(if $(HAVE_AVX512),$(call accepts,$(AMX_FLAGS)))

# CUDA is only built on request: nvcc takes minutes. The run-time library is linked in, the driver's is
# opened when a device is, so that the same binary runs where there is no GPU.
ifeq ($(CUDA),1)
NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
ifeq ($(NVCC),)
$(error CUDA=1 needs nvcc, in PATH or as NVCC=/path/to/nvcc)
endif
# As nvcc says it: what is found in PATH may be a script that calls it.
CUDA_HOME ?= $(realpath $(shell $(NVCC) --dryrun -x cu /dev/null 2>&1 | sed -n 's/^.* TOP=//p'))
CUDA_PORTABLE := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
CUDA_ARCHS = $(CUDA_PORTABLE)
CUDA_SM90 := -gencode arch=compute_90a,code=sm_90a
GPU_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread -lstdc++
CUDA_FLAGS = $(NVCCFLAGS) -std=c++17 -O3 -lineinfo -Xcompiler $(PIE:%=%,)-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off \
	$(if $(filter 1,$(JITTER)),-DSV_CUDA_JITTER)
else ifneq ($(filter-out 0,$(CUDA)),)
$(error CUDA=$(CUDA): must be 1, 0 or empty)
endif

# Ranks as processes that mpirun starts. Its headers are not held to this project's warnings.
ifeq ($(MPI),1)
MPI_PACKAGE ?= $(if $(shell pkg-config --exists ompi-c && echo yes),ompi-c,mpich)
MPI_LIBS := $(shell pkg-config --libs $(MPI_PACKAGE) 2>/dev/null)
MPI_CFLAGS := -DSV_MPI $(patsubst -I%,-isystem %,$(shell pkg-config --cflags-only-I $(MPI_PACKAGE) 2>/dev/null))
ifeq ($(MPI_LIBS),)
$(error MPI=1 needs Open MPI (apt install libopenmpi-dev openmpi-bin) or MPICH (libmpich-dev mpich))
endif
else ifneq ($(filter-out 0,$(MPI)),)
$(error MPI=$(MPI): must be 1, 0 or empty)
endif

# HIP likewise. Its run-time library is a shared one, so a program built with it needs it.
ROCM ?= $(wildcard /opt/rocm)
HIP_CLANGS := $(ROCM:%=%/llvm/bin/clang++) clang++-22 clang++-21 clang++-20 clang++
HIP_FOUND := $(firstword $(foreach c,$(HIP_CLANGS),$(shell command -v $(c) 2>/dev/null)))
ifeq ($(HIP),1)
ifeq ($(CUDA),1)
$(error CUDA=1 and HIP=1: a program has one of the two)
endif
HIPCXX ?= $(HIP_FOUND)
ifneq ($(shell t=$$(mktemp) && echo 'int x;' | $(or $(HIPCXX),false) $(ROCM:%=--rocm-path=%) -x hip \
	-include hip/hip_runtime.h --offload-arch=gfx950 -c -o $$t - >/dev/null 2>&1 && echo yes; rm -f $$t),yes)
$(error HIP=1 needs HIP and a clang that compiles for gfx950, 20 or newer, in PATH or as HIPCXX=/path/to/clang++ (docs/hip.md))
endif
HIP_ARCHS := --offload-arch=gfx942 --offload-arch=gfx950
GPU_LIBS := $(ROCM:%=-L%/lib -Wl,-rpath,%/lib) -lamdhip64 -lstdc++
# A sum keeps its order and its roundings: no product is fused with a sum that is not written so.
HIP_FLAGS = $(ROCM:%=--rocm-path=%) -Isrc/backend/hip -include cuda_runtime.h -std=c++17 -O3 $(PIE) -Wall -Wextra \
	-Wno-unused-parameter -Wno-sign-compare -Wno-unused-value $(WERROR) -ffp-contract=off $(HIPFLAGS)
else ifneq ($(filter-out 0,$(HIP)),)
$(error HIP=$(HIP): must be 1, 0 or empty)
endif

COMPILER := $(shell $(CC) --version 2>/dev/null | head -n 1)
GPU_COMPILER := $(if $(filter 1,$(CUDA)),$(lastword $(shell $(NVCC) --version)))$(if $(filter 1,$(HIP)),\
	$(shell $(HIPCXX) --version | head -n 1))
ifeq ($(MAKELEVEL),0)
ifneq ($(filter-out $(QUICK_GOALS),$(or $(MAKECMDGOALS),all)),)
$(info compiler    $(COMPILER))
$(info cpu kernels plain$(if $(HAVE_AVX2), avx2)$(if $(HAVE_AVX512), avx512)$(if $(HAVE_AMX), amx))
ifeq ($(CUDA),1)
$(info cuda        $(GPU_COMPILER), kernels for sm_80, sm_90 and sm_90a)
endif
ifeq ($(HIP),1)
$(info hip         $(strip $(GPU_COMPILER)), kernels for gfx942 and gfx950 that no card has run)
endif
$(info optional    cuda: $(if $(filter 1,$(CUDA)),built,$(if $(call found,nvcc),yes (make CUDA=1),no)), hip: $(if $(filter 1,$(HIP)),built,$(if $(wildcard $(ROCM:%=%/include/hip/hip_runtime.h) /usr/include/hip/hip_runtime.h),yes (make HIP=1),no)), mpi: $(if $(filter 1,$(MPI)),built,$(if $(call found,mpicc),yes (make MPI=1),no)))
endif
endif

LIBS := jansson libpcre2-8 libutf8proc libedit libevent_core libevent_extra libevent_openssl openssl libpng libjpeg libwebp
LIB_CFLAGS := $(call library,--cflags,$(LIBS),)
LDLIBS := $(call library,--libs,$(LIBS),-ljansson -lpcre2-8 -lutf8proc -ledit -levent_openssl -levent_extra -levent_core -lssl -lcrypto -lpng -ljpeg -lwebp) $(GPU_LIBS) $(MPI_LIBS) -lm -pthread
ifeq ($(STATIC),1)
# For a machine that lacks the libraries; the C library stays dynamic.
LDLIBS := -Wl,-Bstatic $(filter-out -lm,$(shell pkg-config --static --libs $(LIBS))) $(if $(GPU_LIBS),-lstdc++) -Wl,-Bdynamic \
	$(filter-out -lstdc++,$(GPU_LIBS)) $(MPI_LIBS) -lm -pthread
endif
TEST_LDLIBS := $(call library,--libs,cmocka,-lcmocka)

# The user's own flags come last, but for those that the code is not correct without.
INCLUDES := -Isrc -Iinclude -I. $(LIB_CFLAGS)
LACKS := $(if $(HAVE_AVX2),,-DSV_NO_AVX2 -DSV_NO_X86) $(if $(HAVE_AVX512),,-DSV_NO_AVX512) $(if $(HAVE_AMX),,-DSV_NO_AMX)
WARNINGS := -Wall -Wextra $(WERROR) -pedantic -Wno-format-zero-length
C_FLAGS := $(FLAVOUR_FLAGS) $(PIE) $(WARNINGS) $(CFLAGS) -std=c11 -ffp-contract=off -pthread

# ---------------------------------------------------------------- sources

FOLDERS := $(or $(ONLY),*)
sources = $(sort $(wildcard $(1)))
ALL_C := $(call sources,$(FOLDERS:%=src/%/*.c) $(FOLDERS:%=src/%/*/*.c))
LACKING := $(if $(HAVE_AVX2),,%_avx2.c) $(if $(HAVE_AVX512),,%_avx512.c) $(if $(HAVE_AMX),,%_amx.c)
CLI_C := $(filter src/cli/%,$(ALL_C))
CLI_LIB_C := $(filter-out src/cli/main.c,$(CLI_C))
BENCH_PROGRAM_C := $(filter src/bench/%,$(ALL_C))
BENCH_LIB_C := $(filter-out src/bench/main.c,$(BENCH_PROGRAM_C))
LIB_C := $(filter-out $(CLI_C) $(BENCH_PROGRAM_C) $(LACKING),$(ALL_C))
GPU_CU := $(if $(filter 1,$(CUDA)),$(call sources,src/backend/gpu/*.cu src/backend/cuda/*.cu))$(if $(filter 1,$(HIP)),\
	$(filter-out %_sm90.cu %_nvidia.cu,$(call sources,$(addprefix src/backend/,gpu/*.cu cuda/*.cu hip/*.cu))))
LIB_CU := $(if $(filter * backend,$(FOLDERS)),$(GPU_CU))
TEST_C := $(call sources,$(FOLDERS:%=tests/%/test_*.c))
TEST_CU := $(if $(filter 1,$(CUDA)),$(call sources,$(FOLDERS:%=tests/%/test_*.cu)))
FUZZ_C := $(if $(filter * fuzz,$(FOLDERS)),$(call sources,tests/fuzz/fuzz_*.c))
HELP_C := $(filter-out $(TEST_C) $(FUZZ_C) tests/runner.c tests/fuzz/driver.c,\
	$(call sources,tests/*.c $(FOLDERS:%=tests/%/*.c)))
BENCH_C := $(call sources,bench/*.c)
BENCH_CU := $(if $(filter 1,$(CUDA)),$(call sources,bench/*.cu))
BENCH_BIN := $(patsubst %.c,$(O)/%,$(BENCH_C)) $(patsubst %.cu,$(O)/%,$(BENCH_CU))
TEST_SH := $(call sources,$(FOLDERS:%=tests/%/*.test.sh))
# TSan is for the code that shares memory between threads.
TSAN_AREAS := base backend cache dist engine serve

object = $(patsubst %.c,$(O)/obj/%.o,$(patsubst %.cu,$(O)/obj/%.o,$(1)))
program = $(patsubst %.c,$(O)/%,$(1))
TEST_BIN := $(call program,$(TEST_C)) $(patsubst %.cu,$(O)/%,$(TEST_CU))
REPLAY_BIN := $(call program,$(FUZZ_C))
TSAN_BIN := $(call program,$(filter $(TSAN_AREAS:%=tests/%/test_%),$(TEST_C)))

# What takes the tests' time is optimised in every flavour: a sanitizer checks it all the same.
KERNEL_FLAGS := $(if $(filter asan tsan,$(FLAVOUR)),-O2)
$(foreach o,src/backend/cpu/% src/policy/% tests/policy/% tests/backend/%_avx512,$(O)/obj/$(o).o): OWN_FLAGS += $(KERNEL_FLAGS)
# Tests run beside one another, on as many cores: a thread that waits leaves its core to them.
$(O)/obj/src/base/pool.o: OWN_FLAGS += $(if $(filter asan,$(FLAVOUR)),-DSPIN_NS=SPIN_CROWDED_NS)
# ASan sees each access of a kernel. UBSan's checks of the same addresses take as long to compile as all else in it.
ADDRESSES := pointer-overflow,alignment,null,object-size
$(O)/obj/src/backend/cpu/%.o: OWN_FLAGS += $(if $(filter asan,$(FLAVOUR)),-fno-sanitize=$(ADDRESSES))
# But for one that takes a compiler a minute and a half then, and half of that without.
$(O)/obj/src/backend/cpu/gemm_codes_avx512.o: KERNEL_FLAGS :=
$(O)/obj/%_avx2.o: OWN_FLAGS += $(AVX2_FLAGS)
$(O)/obj/%_avx512.o: OWN_FLAGS += $(AVX512_FLAGS)
$(O)/obj/%_amx.o: OWN_FLAGS += $(AMX_FLAGS)
$(O)/obj/tests/%.o $(O)/obj/bench/%.o: OWN_FLAGS += -Itests
ifeq ($(FLAVOUR),fuzz)
# No outside bytes reach the kernels, and clang takes minutes to instrument them.
$(O)/obj/src/backend/cpu/%.o: OWN_FLAGS += -fno-sanitize=all
endif
$(O)/obj/src/dist/mpi.o: OWN_FLAGS += $(MPI_CFLAGS)
# ops.c alone must know what was built. When no backend is named, the first that finds its hardware is used: so AMD's, whose
# kernels no card has run, only by its name.
BACKENDS := $(if $(LIB_CU),$(if $(filter 1,$(HIP)),cpu hip,cuda cpu),cpu)
$(O)/obj/src/backend/ops.o: OWN_FLAGS += -D'SV_BACKENDS=$(patsubst %,BACKEND(%),$(BACKENDS))'
$(O)/obj/src/backend/ops.o: $(O)/backends.list
$(O)/obj/%_sm90.o: CUDA_ARCHS := $(CUDA_SM90)
# The kernels of gemm_sm90 once more, for other forms of weights and for experts: CUDA_FORMS, as CI has it, optimizes them
# less.
CUDA_FORMS ?=
$(O)/obj/src/backend/cuda/gemm_%_sm90.o: CUDA_ARCHS := $(CUDA_SM90) $(CUDA_FORMS)
$(O)/obj/src/backend/cuda/moe_sm90.o: CUDA_ARCHS := $(CUDA_SM90) $(CUDA_FORMS)
$(O)/obj/tests/%.o: CUDA_OWN := -Itests

$(O)/obj/src/backend/%.o: HARDENING :=
COMPILE_C = $(CC) $(INCLUDES) $(LACKS) $(HARDENING) $(CPPFLAGS) $(C_FLAGS) $(OWN_FLAGS)
GPU := $(if $(filter 1,$(HIP)),HIP,CUDA)
COMPILE_CUDA = $(NVCC) -Isrc -Iinclude -I. $(CUDA_FLAGS) $(CUDA_OWN) $(CUDA_ARCHS)
COMPILE_HIP = $(HIPCXX) -x hip $(HIP_ARCHS) $(HIP_FLAGS) -Isrc -Iinclude -I.
COMPILE_CU = $(COMPILE_$(GPU))

# How each object was made stands in its .d file, which is read with the others: one that was made by another command is
# made again. The compiler writes that file anew, without the line, which comes when the object is in place: a compilation
# that ends in between leaves an old object that is not taken for a new one.
AS_MADE = $(strip $(1)) ($(strip $(2)))
unless_made_by = $(if $(subst x$(made.$@),,x$(1))$(subst x$(1),,x$(made.$@)),FORCE)
quoted = '$(subst ','\'',$(1))'
RECORD = printf '%s\n' $(call quoted,made.$@ := $(subst \#,\\\#,$(subst $$,$$$$,$(1)))) >>$(@:.o=.d)

# Written beside and moved into place, so that two makes in one checkout never link half an object. It gets the time at
# which the compiler started: a source that changes meanwhile is newer, and the object is made again.
DEPENDS = -MMD -MP -MF $(@:.o=.d) -MT $@
DATED = touch -r $@.$$$$.at
.SECONDEXPANSION:
$(O)/obj/%.o: %.c $$(call unless_made_by,$$(call AS_MADE,$$(COMPILE_C),$$(COMPILER)))
	@mkdir -p $(@D)
	@echo "  cc    $(O)/$*"
	@touch $@.$$$$.at; $(COMPILE_C) $(DEPENDS) -c -o $@.$$$$ $< && $(DATED) $@.$$$$ && mv $@.$$$$ $@ && rm $@.$$$$.at && \
		$(call RECORD,$(call AS_MADE,$(COMPILE_C),$(COMPILER))) || { rm -f $@.$$$$ $@.$$$$.at; exit 1; }

$(O)/obj/%.o: %.cu $$(call unless_made_by,$$(call AS_MADE,$$(COMPILE_CU),$$(GPU_COMPILER)))
	@mkdir -p $(@D)
	@echo "  $(if $(filter 1,$(HIP)),clang,nvcc ) $(O)/$*"
	@touch $@.$$$$.at; $(COMPILE_CU) $(DEPENDS) -c -o $@.$$$$.o $< && $(DATED) $@.$$$$.o && mv $@.$$$$.o $@ && \
		rm $@.$$$$.at && $(call RECORD,$(call AS_MADE,$(COMPILE_CU),$(GPU_COMPILER))) || \
		{ rm -f $@.$$$$.o $@.$$$$.at; exit 1; }

# The page is taken in by the assembler (.incbin), which -MMD does not see.
$(O)/obj/src/serve/page/page.o: $(call sources,src/serve/page/*)

# Changes when a source comes or goes, so that no archive keeps what is no longer in the tree, or with how programs are linked.
$(O)/%.list: FORCE
	@mkdir -p $(@D)
	@echo $(call quoted,$(LISTED)) | cmp -s - $@ || echo $(call quoted,$(LISTED)) >$@
.PHONY: FORCE
FORCE:
$(O)/libsalvo.list: LISTED := $(LIB_C) $(LIB_CU)
$(O)/backends.list: LISTED := $(BACKENDS)
$(O)/libcli.list: LISTED := $(CLI_LIB_C)
$(O)/libbench.list: LISTED := $(BENCH_LIB_C)
$(O)/libtest.list: LISTED := $(HELP_C)
$(O)/link.list: LISTED = $(LINK_WITH) $(TEST_LDLIBS) $(LDLIBS)

# ar q, not r: files of different folders may share a name.
ARCHIVE = @echo "  ar    $@" && $(AR) qcs $@.$$$$ $(filter %.o,$^) && mv $@.$$$$ $@

$(O)/libsalvo.a: $(call object,$(LIB_C) $(LIB_CU)) $(O)/libsalvo.list
	$(ARCHIVE)

# The program without its main: what its commands are made of, for tests.
$(O)/libcli.a: $(call object,$(CLI_LIB_C)) $(O)/libcli.list
	$(ARCHIVE)

# The same of salvo-bench.
$(O)/libbench.a: $(call object,$(BENCH_LIB_C)) $(O)/libbench.list
	$(ARCHIVE)

$(O)/libtest.a: $(call object,$(HELP_C)) $(O)/libtest.list
	$(ARCHIVE)

LINK_WITH = $(CC) $(C_FLAGS) $(LINK_HARDENING) $(LINKER) $(LDFLAGS)
LINK = @mkdir -p $(@D) && echo "  link  $@" && $(LINK_WITH) -o $@.$$$$ $(filter %.o,$^) $(filter %.a,$^)
MOVE = && mv $@.$$$$ $@ || { rm -f $@.$$$$; exit 1; }

$(O)/salvo: $(call object,$(CLI_C)) $(O)/libsalvo.a $(O)/link.list
	$(LINK) $(LDLIBS) $(MOVE)

$(O)/salvo-bench: $(call object,$(BENCH_PROGRAM_C)) $(O)/libcli.a $(O)/libsalvo.a $(O)/link.list
	$(LINK) $(LDLIBS) $(MOVE)

# Tests of threads (TSAN_AREAS) use nothing of the programs.
PROGRAM_A := $(if $(filter tsan,$(FLAVOUR)),,$(O)/libbench.a $(O)/libcli.a)
$(TEST_BIN): $(O)/%: $(O)/obj/%.o $(O)/libtest.a $(PROGRAM_A) $(O)/libsalvo.a $(O)/link.list
	$(LINK) $(TEST_LDLIBS) $(LDLIBS) $(MOVE)

# This target compares with a matcher that tests of its area use as well; libFuzzer's programs have no libtest.
$(O)/tests/fuzz/fuzz_grammar: $(call object,tests/grammar/words.c tests/grammar/naive.c)
# Linked with the replay driver under ASan, with libFuzzer's own main in the fuzz flavour.
FUZZ_MAIN := $(if $(filter fuzz,$(FLAVOUR)),,$(O)/obj/tests/fuzz/driver.o)
$(REPLAY_BIN): $(O)/%: $(O)/obj/%.o $(FUZZ_MAIN) $(O)/libtest.a $(O)/libsalvo.a $(O)/link.list
	$(LINK) $(if $(FUZZ_MAIN),,-fsanitize=fuzzer) $(TEST_LDLIBS) $(LDLIBS) $(MOVE)

$(BENCH_BIN): $(O)/%: $(O)/obj/%.o $(O)/libbench.a $(O)/libsalvo.a $(O)/link.list
	$(LINK) $(LDLIBS) $(MOVE)

# The runner itself is plain C and never sanitized: it only starts processes.
$(B)/runner: tests/runner.c
	@mkdir -p $(@D)
	@$(CC) -std=c11 -Wall -Wextra $(WERROR) -pedantic -O1 -g -o $@.$$$$ $< $(MOVE)

-include $(shell find $(O)/obj -name '*.d' 2>/dev/null)

# ---------------------------------------------------------------- goals

.PHONY: all help test tests tsan fuzz demo bench check format clean install setup

SALVO := $(if $(filter src/cli/main.c,$(CLI_C)),$(O)/salvo)
SALVO_BENCH := $(if $(filter src/bench/main.c,$(BENCH_PROGRAM_C)),$(O)/salvo-bench)
all: $(O)/libsalvo.a $(SALVO) $(SALVO_BENCH)

help:
	@echo 'make            build/salvo, build/salvo-bench and build/libsalvo.a; CUDA=1 with the CUDA backend (needs nvcc)'
	@echo '                MPI=1 with ranks as processes (needs Open MPI or MPICH)'
	@echo "                HIP=1 with AMD's, never run on a card (needs clang 20 or newer and HIP)"
	@echo '                STATIC=1 links the libraries of Debian into the program'
	@echo 'make demo       plain decoding beside DFlash on the pair that ships with the project'
	@echo 'make test       all tests under ASan and UBSan, long ones whole in the release build (T=part of a name: some;'
	@echo '                SLOW=3: three times as long for each, on a slow or busy machine)'
	@echo 'make tsan       the tests of threads under ThreadSanitizer'
	@echo 'make fuzz       libFuzzer on every target, FUZZ_S=30 seconds each, JOBS=2 at a time (T=name: one;'
	@echo '                FUZZ_KEEP=1: what it found joins the inputs in tests/fuzz/corpus)'
	@echo 'make check      layers, sizes, naming and format of the source; links of the docs'
	@echo 'make bench      the benchmark programs, into build/bench'
	@echo 'make install    program, library, salvo.h and salvo.pc (PREFIX=/usr/local, DESTDIR)'
	@echo 'make format     clang-format-14; make clean: everything that was built'

setup:
	@tools/setup

# What `make test` needs of one flavour; only the wanted programs when T names some, or their cases.
NAMED = $(or $(findstring $(1),$(2)),$(findstring /$(notdir $(2))/,/$(1)/))
WANTED = $(or $(strip $(foreach w,$(T),$(foreach p,$(1),$(if $(call NAMED,$(w),$(p)),$(p))))),$(1))
tests: $(call WANTED,$(TEST_BIN) $(REPLAY_BIN))

# Programs with cases that run whole in the release build, and in part under ASan: tests/testing.h.
RELEASE_C = $(if $(TEST_C),$(shell grep -l 'release: ' $(TEST_C)))
.PHONY: release-tests
release-tests: $(filter $(call WANTED,$(TEST_BIN)),$(call program,$(RELEASE_C)))

# The longest are scripts: they come first, so that none runs alone in the end.
test:
	@$(MAKE) -s --no-print-directory FLAVOUR=asan tests
	@$(MAKE) -s --no-print-directory FLAVOUR=release all release-tests $(B)/runner
	@SALVO=$(B)/salvo SALVO_BENCH=$(B)/salvo-bench RUNNER=$(B)/runner \
		$(B)/runner -j $(JOBS) -x $(SLOW) -r $(B) $(T:%=-k %) \
		$(TEST_SH) $(TEST_C:%.c=$(B)/asan/%) $(TEST_CU:%.cu=$(B)/asan/%) $(FUZZ_C:%.c=$(B)/asan/%)

tsan:
	@$(MAKE) -s --no-print-directory FLAVOUR=tsan tsan-tests
	@$(MAKE) -s --no-print-directory FLAVOUR=release $(B)/runner
	@$(B)/runner -j $(JOBS) -x 5 $(T:%=-k %) $(TSAN_BIN:$(O)/%=$(B)/tsan/%)
.PHONY: tsan-tests
tsan-tests: $(call WANTED,$(TSAN_BIN))

FUZZ_S ?= 30
FUZZ_KEEP ?=
FUZZ_WANTED = $(call WANTED,$(FUZZ_C))
fuzz:
	+@MAKE='$(MAKE)' tools/fuzz.sh $(if $(FUZZ_KEEP),--keep) $(B) $(FUZZ_S) $(JOBS) $(FUZZ_WANTED)
.PHONY: fuzz-programs
fuzz-programs: $(call WANTED,$(REPLAY_BIN))

demo: all
	@if [ -x tools/demo.sh ]; then SALVO=$(B)/salvo tools/demo.sh; else echo 'tools/demo.sh is missing' >&2; exit 1; fi

# GPU code alone, none of which another build of the same folder has: beside one, in time that it leaves.
.PHONY: kernels
kernels: $(call object,$(LIB_CU) $(BENCH_CU))

# The test of joins with late warps in the kernels that ranks meet in alone, which takes minutes: JITTER=1 tests/gpu.sh
# $(B)/jitter runs it.
LATE := $(call object,$(addprefix src/backend/,gpu/join.cu gpu/rows.cu $(addprefix cuda/,route_sm90.cu gemm_sm90.cu \
	gemm_wcomp_sm90.cu gemm_beside_sm90.cu gemm_one12_sm90.cu)))
.PHONY: late-joins
late-joins: $(O)/obj/tests/backend/test_cross_join.o $(O)/libtest.a $(O)/libsalvo.a
	+@$(MAKE) -s --no-print-directory JITTER=1 $(LATE:$(O)/%=$(O)/jitter/%)
	@mkdir -p $(O)/jitter/tests/backend
	$(LINK_WITH) -o $(O)/jitter/tests/backend/test_cross_join $< $(LATE:$(O)/%=$(O)/jitter/%) $(filter %.a,$^) \
		$(TEST_LDLIBS) $(LDLIBS)

bench: $(BENCH_BIN) $(SALVO) $(SALVO_BENCH)
	@echo "benchmarks: $(or $(BENCH_BIN),none yet)"

# Debian 12's: other versions break lines elsewhere.
CLANG_FORMAT ?= clang-format-14
FORMATTED = $(shell find src tests bench include -name node_modules -prune -o \
	\( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print)

check:
	@tools/check_layers
	@tools/check_gpu
	@tools/check_links
	@if command -v $(CLANG_FORMAT) >/dev/null; then $(CLANG_FORMAT) --dry-run -Werror $(FORMATTED); \
	else echo '$(CLANG_FORMAT) is not installed: the format was not checked'; fi

format:
	$(CLANG_FORMAT) -i $(FORMATTED)

clean:
	rm -rf $(B)

# The library's own part of what it is linked with: serve and cli are not in reach of salvo.h.
define SALVO_PC_TEXT
Name: salvo
Description: LLM inference with DFlash speculative decoding
Version: $(shell sed -n 's/.*SALVO_VERSION "\(.*\)"/\1/p' include/salvo.h)
Requires: jansson libpcre2-8 libutf8proc libpng libjpeg libwebp
Cflags: -I$(PREFIX)/include
Libs: -L$(PREFIX)/lib -lsalvo $(GPU_LIBS) $(MPI_LIBS) -lm -pthread
endef

install: export SALVO_PC = $(SALVO_PC_TEXT)
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	$(if $(SALVO),install $(SALVO) $(SALVO_BENCH) $(DESTDIR)$(PREFIX)/bin/)
	install -m 644 $(O)/libsalvo.a $(DESTDIR)$(PREFIX)/lib/
	install -m 644 include/salvo.h include/salvo_tuning.h $(DESTDIR)$(PREFIX)/include/
	echo "$$SALVO_PC" >$(DESTDIR)$(PREFIX)/lib/pkgconfig/salvo.pc
