/* The stub's launches: each is counted and kept, with its arguments.
 *
 * In: functions, grids, arguments. Out: launches in the order of their streams, each handed to a
 * function that a test has given (`stub_on_launch`), which may run it: addresses are plain ones of
 * this process. The one idea: the driver copies a kernel's arguments when it is launched, by the
 * offsets and sizes that the loaded code says; so what is kept is what the kernel would read, and a
 * launch beyond the device's limits is refused before it is queued. Read next: modules.c, images.c, and
 * `tests/doubles/ptx_machine.py`, where kernels are run.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <stdlib.h>
#include <string.h>

/* What a test may give: runs a launch; 0, or the number of the error that it ends in. */
typedef int (*on_launch)(const char *name, const void *image, size_t image_bytes,
                         const unsigned *grid, const unsigned *block, unsigned shared_bytes,
                         const void *parameters);

static on_launch interpreter;
static struct launch **kept; /* a ring */
static size_t kept_room, kept_count;
static CUresult within_limits(const struct function *function, const unsigned *grid,
                              const unsigned *block, unsigned shared)
{
    unsigned long long threads = (unsigned long long)block[0] * block[1] * block[2];
    const char *name = function->name;
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > MOST_GRID_X || grid[1] > MOST_GRID_YZ ||
        grid[2] > MOST_GRID_YZ)
        return refuse(CUDA_ERROR_INVALID_VALUE, "%s: a grid of %u x %u x %u", name, grid[0], grid[1],
                      grid[2]);
    if (!threads || block[0] > MOST_THREADS || block[1] > MOST_THREADS || block[2] > MOST_BLOCK_Z ||
        threads > MOST_THREADS)
        return refuse(CUDA_ERROR_INVALID_VALUE, "%s: blocks of %u x %u x %u", name, block[0],
                      block[1], block[2]);
    if (threads > function->most_threads)
        return refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "%s: %llu threads of %u registers", name,
                      threads, function->registers);
    if (shared > function->dynamic_bytes || shared + function->shared_bytes > MOST_SHARED ||
        (function->dynamic_bytes == STATIC_SHARED && shared + function->shared_bytes > STATIC_SHARED))
        return refuse(CUDA_ERROR_INVALID_VALUE, "%s: %u bytes of shared memory", name,
                      shared + function->shared_bytes);
    return CUDA_SUCCESS;
}

/* Arguments one by one, or (`extra`: 1 buffer, 2 its size, 0) packed by the caller. */
static CUresult pack(const struct function *function, void **given, void **extra, unsigned char *to)
{
    const void *buffer = NULL;
    size_t size = 0;
    for (; !given && extra && *extra; extra += 2) {
        if (*extra == (void *)1) buffer = extra[1];
        if (*extra == (void *)2) size = *(size_t *)extra[1];
    }
    if (function->parameter_count && !given && !buffer)
        return refuse(CUDA_ERROR_INVALID_VALUE, "%s: no arguments", function->name);
    if (buffer && size < function->parameter_bytes)
        return refuse(CUDA_ERROR_INVALID_VALUE, "%s: %zu bytes of arguments, %u are wanted",
                      function->name, size, function->parameter_bytes);
    if (buffer) memcpy(to, buffer, function->parameter_bytes);
    for (unsigned i = 0; given && i < function->parameter_count; i++)
        memcpy(to + function->parameters[i].offset, given[i], function->parameters[i].size);
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction handle, const unsigned *grid, const unsigned *block,
                       unsigned shared, CUstream stream, void **given, void **extra)
{
    const struct function *function = function_of(handle);
    if (!function) return no_function(handle);
    if (!known_stream(stream))
        return refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no stream", (void *)stream);
    CUresult status = within_limits(function, grid, block, shared);
    if (status) return status;
    struct launch *made = calloc(1, sizeof *made + function->parameter_bytes);
    *made = (struct launch){
        .name = function->name, .image = function->image->bytes,
        .image_bytes = function->image->size, .grid = {grid[0], grid[1], grid[2]},
        .block = {block[0], block[1], block[2]}, .shared_bytes = shared, .stream = stream,
        .parameter_bytes = function->parameter_bytes, .parameters = (unsigned char *)(made + 1),
    };
    status = pack(function, given, extra, made->parameters);
    if (status) {
        free(made);
        return status;
    }
    numbers.launches += !takes_part_in_capture(stream);
    return queue_launch(stream, made);
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                               unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                               unsigned int block_z, unsigned int shared, CUstream stream,
                               void **arguments, void **extra)
{
    ENTER(CONTEXT);
    const unsigned grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    return launch(function, grid, block, shared, stream, arguments, extra);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *how, CUfunction function, void **arguments,
                                 void **extra)
{
    ENTER(CONTEXT);
    if (!how) return refuse(CUDA_ERROR_INVALID_VALUE, "no configuration");
    const unsigned grid[3] = {how->gridDimX, how->gridDimY, how->gridDimZ};
    const unsigned block[3] = {how->blockDimX, how->blockDimY, how->blockDimZ};
    return launch(function, grid, block, how->sharedMemBytes, how->hStream, arguments, extra);
}

CUresult run_launch(const struct launch *launch)
{
    if (!interpreter) return CUDA_SUCCESS;
    int status = interpreter(launch->name, launch->image, launch->image_bytes, launch->grid,
                             launch->block, launch->shared_bytes, launch->parameters);
    if (status) break_context((CUresult)status, "%s ended in error %d", launch->name, status);
    return (CUresult)status;
}

struct launch *copy_launch(const struct launch *launch)
{
    struct launch *made = malloc(sizeof *made + launch->parameter_bytes);
    *made = *launch;
    made->parameters = (unsigned char *)(made + 1);
    memcpy(made->parameters, launch->parameters, launch->parameter_bytes);
    return made;
}

void keep_launch(struct launch *launch)
{
    size_t room = options.kept > 0 ? (size_t)options.kept : 0;
    if (!kept && room) {
        kept = calloc(room, sizeof *kept);
        kept_room = room;
    }
    if (!kept_room) {
        free(launch);
        return;
    }
    struct launch **place = &kept[kept_count++ % kept_room];
    free(*place);
    *place = launch;
}

/* Who runs launches; NULL: nobody. Called while the stub's lock is held, in the order of a stream. */
EXPORT void stub_on_launch(on_launch function)
{
    stub_lock();
    interpreter = function;
    stub_unlock();
}

/* How many launches were done, whether kept or not. */
EXPORT size_t stub_launches_done(void) { return kept_count; }

/* The launch of a number, counted from 0; NULL: it is not kept any more, or is still to come. */
EXPORT const struct launch *stub_launch(size_t number)
{
    if (number >= kept_count || kept_count - number > kept_room) return NULL;
    return kept[number % kept_room];
}

void forget_launches(void)
{
    for (size_t i = 0; i < kept_room; i++) free(kept[i]);
    free(kept);
    kept = NULL;
    kept_room = kept_count = 0;
    interpreter = NULL;
}
