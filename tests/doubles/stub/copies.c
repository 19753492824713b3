/* The stub's copies and fills: looked at when they are queued, as CUDA does; done by streams.c.
 *
 * In: addresses, sizes, a stream. Out: queued work. The one idea: only a copy from or to pinned
 * memory is queued; any other is done while the host waits, and counted. Read next: streams.c.
 */
#define _GNU_SOURCE
#include "streams.h"

#include <string.h>

static CUresult reachable(CUdeviceptr address, size_t size, const char *what)
{
    if (!size || hole_in(address, size))
        return refuse(CUDA_ERROR_INVALID_VALUE, "%s of [%#llx, +%zu), which is not accessible", what,
                      address, size);
    return CUDA_SUCCESS;
}

/* Between the device and memory that is not pinned CUDA copies while the host waits. */
static CUresult copy_now(struct stream *stream, const struct work *work)
{
    if (stream->captures)
        return spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a copy that the host waits for");
    if (stream == &legacy) finish_blocking();
    CUresult status = finish(stream);
    if (status == CUDA_SUCCESS)
        memmove((void *)work->to, (const void *)work->from, work->size);
    return status;
}

static CUresult copy(CUstream handle, struct work work, int waits)
{
    struct stream *stream = stream_of(handle);
    if (!stream) return no_stream(handle);
    CUresult status = CUDA_SUCCESS;
    if (work.to_device) status = reachable(work.to, work.size, "a copy");
    if (!status && work.from_device) status = reachable(work.from, work.size, "a copy");
    if (status) return status;
    int both = work.to_device && work.from_device;
    int held = both ? 1 : pinned(work.to_device ? work.from : work.to, work.size);
    if (held < 0) return refuse(CUDA_ERROR_INVALID_VALUE, "a copy leaves pinned memory");
    if (waits) return copy_now(stream, &work);
    if (!held) {
        numbers.pageable_copies++;
        return copy_now(stream, &work);
    }
    put(stream, work);
    return queued(stream);
}

#define INTO(address, source)                                                            \
    ((struct work){.kind = COPY, .to = address, .from = (uintptr_t)(source), .size = size, \
                   .to_device = 1})
#define OUT_OF(target, address)                                                          \
    ((struct work){.kind = COPY, .to = (uintptr_t)(target), .from = address, .size = size, \
                   .from_device = 1})
#define WITHIN(target, source)                                                             \
    ((struct work){.kind = COPY, .to = target, .from = source, .size = size, .to_device = 1, \
                   .from_device = 1})

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    ENTER(CONTEXT);
    return copy(stream, INTO(to, from), 0);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    ENTER(CONTEXT);
    return copy(stream, OUT_OF(to, from), 0);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    ENTER(CONTEXT);
    return copy(stream, WITHIN(to, from), 0);
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    ENTER(CONTEXT);
    return copy(NULL, INTO(to, from), 1);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    ENTER(CONTEXT);
    return copy(NULL, OUT_OF(to, from), 1);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    ENTER(CONTEXT);
    return copy(NULL, WITHIN(to, from), 1);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t size, CUstream handle)
{
    ENTER(CONTEXT);
    struct stream *stream = stream_of(handle);
    if (!stream) return no_stream(handle);
    CUresult status = reachable(to, size, "a fill");
    if (status) return status;
    put(stream, (struct work){.kind = FILL, .to = to, .size = size, .to_device = 1, .byte = byte});
    return queued(stream);
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char byte, size_t size)
{
    return cuMemsetD8Async(to, byte, size, NULL);
}
