/* What the files of the stub driver share: CUDA's types, the gate that each call passes, tables.
 *
 * The types are cuda.h's own where STUB_CHECKS_CUDA_H is defined, so that a C compiler holds every
 * function of this folder against its prototype; without a toolkit they are written out here, as
 * the same bytes. One lock guards everything: a call holds it from `ENTER` until it returns.
 * Read next: gate.c, memory.c, streams.c, images.c, launches.c.
 */
#ifndef OOCTRAIN_STUB_H
#define OOCTRAIN_STUB_H

#include <stddef.h>
#include <stdint.h>

#ifdef STUB_CHECKS_CUDA_H
#include <cuda.h>
#else
#include "cuda_types.h"
#endif

#define EXPORT __attribute__((visibility("default")))

/* The gate: what a call needs before anybody looks at its arguments. */
enum needs {
    NOTHING,     /* not even cuInit */
    INITIALIZED, /* cuInit, and no fork since */
    SOUND,       /* besides, no error that lasts */
    CONTEXT,     /* besides, a living context in this thread */
};

struct stub_call { /* one for each function of the driver, found by its name */
    const char *name;
    long count;
    struct stub_call *next;
};

EXPORT void stub_lock(void);
EXPORT void stub_unlock(void);
CUresult stub_enter(struct stub_call *call, enum needs needs);
void stub_leave(int *unused);

#define ENTER(needs)                                                         \
    static struct stub_call stub_here;                                       \
    __attribute__((cleanup(stub_leave))) int stub_held_lock = 0;             \
    stub_here.name = __func__;                                               \
    (void)stub_held_lock;                                                    \
    CUresult stub_refusal = stub_enter(&stub_here, needs);                   \
    if (stub_refusal != CUDA_SUCCESS) return stub_refusal

/* Remembers why a call is refused, in words, and returns the number. */
CUresult refuse(CUresult status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for what breaks the context: every later call answers the number. */
CUresult break_context(CUresult status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

struct stub_options {
    long long total_bytes;   /* of the device */
    long long granularity;   /* of sizes and addresses of mappings */
    long long address_bytes; /* that can be reserved */
    long long host_bytes;    /* that can be pinned */
    long long version;       /* that the driver serves, 13000 is CUDA 13.0 */
    long long capability;    /* 90 is 9.0 */
    long long maps;          /* whether virtual memory management is there */
    long long late;          /* 1: work is done when somebody waits; 0: at once */
    long long fresh;         /* 1: fresh memory is NaN; 0: zero, untouched, for large memories */
    long long kept;          /* how many launches are remembered */
    long long most_moved;    /* larger copies are looked at and move nothing; 0: all are done */
};
extern struct stub_options options;

struct stub_numbers { /* what tests count, apart from calls */
    long long contexts_made, retained, hidden_waits, pageable_copies, launches, used_bytes;
    long long handles, references, reservations, mappings, allocations, host, host_bytes;
    long long streams, events, modules, graphs, execs, sticky;
};
extern struct stub_numbers numbers;

/* memory.c */
CUdeviceptr hole_in(CUdeviceptr address, size_t size); /* first address without access, or 0 */
int pinned(uintptr_t host, size_t size); /* 1: all of it, 0: nothing, -1: a part */
void forget_memory(void);

/* allocations.c */
void forget_allocations(void);

/* streams.c: work that is queued */
struct launch;
int used_by_work(CUdeviceptr address, size_t size); /* whether queued work is still to use it */
int used_image(const void *image);
int takes_part_in_capture(CUstream stream);
CUresult capture_forbids(const char *name);
CUresult finish_everything(void);
CUresult queue_launch(CUstream stream, struct launch *launch);
int known_stream(CUstream stream);
void forget_streams(void);

/* launches.c: a launch owns its arguments */
struct launch {
    const char *name;  /* of the function, within the image */
    const void *image; /* cubin or PTX as it was loaded */
    size_t image_bytes;
    unsigned grid[3], block[3], shared_bytes;
    CUstream stream;
    size_t parameter_bytes;
    unsigned char *parameters; /* laid out as the kernel reads them */
};
CUresult run_launch(const struct launch *launch); /* hands it to the interpreter, if there is one */
void keep_launch(struct launch *launch);          /* takes it over */
struct launch *copy_launch(const struct launch *launch);
void forget_launches(void);

/* images.c: loaded code */
struct parameter {
    unsigned offset, size;
};
struct function {
    char *name;
    struct image *image;
    unsigned registers, shared_bytes, local_bytes, most_threads, dynamic_bytes;
    unsigned parameter_count, parameter_bytes;
    struct parameter *parameters;
};
struct image {
    unsigned char *bytes;
    size_t size;
    int arch, ptx_version;
    unsigned function_count;
    struct function *functions;
};
CUresult read_image(const void *data, struct image **made);
void free_image(struct image *image);

/* modules.c */
struct function *function_of(CUfunction handle); /* NULL: no such handle */
CUresult no_function(const void *handle);
void forget_modules(void);

enum limits {
    MOST_THREADS = 1024,
    MOST_BLOCK_Z = 64,
    MOST_GRID_YZ = 65535,
    STATIC_SHARED = 48 * 1024,
    MOST_SHARED = 227 * 1024,
    REGISTERS = 65536,
};
#define MOST_GRID_X 2147483647u

#endif
