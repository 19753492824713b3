/* The stub's whole allocations and pinned host memory, and what may be asked of a pointer.
 *
 * In: sizes and addresses. Out: addresses of this process. The one idea: what belongs to a context
 * is here, and goes with it; mappings and handles are the process's (memory.c). Memory that queued
 * work is still to use is given back as CUDA does it: when the device is through, while the host
 * waits. Read next: memory.c.
 */
#define _GNU_SOURCE
#include "ranges.h"

#include <string.h>
#include <sys/mman.h>

/* Memory in one piece. */

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    ENTER(CONTEXT);
    if (!size) return refuse(CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes");
    if (!fits(granules(size)))
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "%lld bytes are in use", numbers.used_bytes);
    size_t room = (size + PAGE - 1) / PAGE * PAGE;
    CUdeviceptr found = addresses(0, room, (size_t)options.granularity);
    if (!found || mprotect((void *)(uintptr_t)found, room, PROT_READ | PROT_WRITE))
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "this machine has no %zu bytes", size);
    if (options.fresh) memset((void *)(uintptr_t)found, FRESH_BYTE, size);
    add_range(&device, (struct range){.base = found, .size = size, .access = 1});
    numbers.used_bytes += (long long)granules(size);
    numbers.allocations++;
    *address = found;
    return CUDA_SUCCESS;
}

static void free_allocation(struct range *found)
{
    numbers.used_bytes -= (long long)granules(found->size);
    numbers.allocations--;
    give_addresses_back(found->base, (found->size + PAGE - 1) / PAGE * PAGE);
    drop_range(&device, found);
}

/* As CUDA does: memory in use is freed when the device is through, and the host waits for that. */
static CUresult wait_for_users(CUdeviceptr address, size_t size)
{
    if (!used_by_work(address, size)) return CUDA_SUCCESS;
    numbers.hidden_waits++;
    return finish_everything();
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTER(CONTEXT);
    struct range *found = range_at(&device, address);
    if (!found || found->handle)
        return refuse(CUDA_ERROR_INVALID_VALUE, "%#llx was not allocated", address);
    CUresult status = wait_for_users(address, found->size);
    if (status == CUDA_SUCCESS) free_allocation(found);
    return status;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    ENTER(CONTEXT);
    *left = (size_t)(options.total_bytes - numbers.used_bytes);
    *total = (size_t)options.total_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    ENTER(CONTEXT);
    struct range *found = covering(&device, address);
    if (!found) return refuse(CUDA_ERROR_NOT_FOUND, "%#llx is no device memory", address);
    if (base) *base = found->base;
    if (size) *size = found->size;
    return CUDA_SUCCESS;
}

/* Of a device pointer or one to pinned memory: 1 context, 2 kind (1 host, 2 device), 3 and 4 the
 * pointer, 8 managed, 9 device, 11 and 12 the range. */
EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute wanted, CUdeviceptr address)
{
    ENTER(CONTEXT);
    struct range *in_device = covering(&device, address), *in_host = covering(&host, address);
    struct range *found = in_device ? in_device : in_host;
    if (!found) return refuse(CUDA_ERROR_INVALID_VALUE, "%#llx is nothing of CUDA's", address);
    switch ((int)wanted) {
    case 2: *(unsigned *)data = in_device ? 2 : 1; return CUDA_SUCCESS;
    case 3: *(CUdeviceptr *)data = address; return CUDA_SUCCESS;
    case 4: *(CUdeviceptr *)data = in_host ? address : 0; return CUDA_SUCCESS;
    case 8: *(unsigned *)data = 0; return CUDA_SUCCESS;
    case 9: *(int *)data = 0; return CUDA_SUCCESS;
    case 11: *(CUdeviceptr *)data = found->base; return CUDA_SUCCESS;
    case 12: *(size_t *)data = found->size; return CUDA_SUCCESS;
    default: return refuse(CUDA_ERROR_NOT_SUPPORTED, "pointer attribute %d", (int)wanted);
    }
}

/* Pinned host memory. */

EXPORT CUresult cuMemHostAlloc(void **address, size_t size, unsigned int flags)
{
    ENTER(CONTEXT);
    if (!size || flags > 7) return refuse(CUDA_ERROR_INVALID_VALUE, "%zu pinned bytes", size);
    if (numbers.host_bytes + (long long)size > options.host_bytes)
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "%lld bytes are pinned", numbers.host_bytes);
    size_t room = (size + PAGE - 1) / PAGE * PAGE;
    CUdeviceptr found = addresses(0, room, PAGE);
    if (!found || mprotect((void *)(uintptr_t)found, room, PROT_READ | PROT_WRITE))
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "this machine has no %zu bytes", size);
    if (options.fresh) memset((void *)(uintptr_t)found, FRESH_BYTE, size);
    add_range(&host, (struct range){.base = found, .size = size, .access = 1});
    numbers.host++;
    numbers.host_bytes += (long long)size;
    *address = (void *)(uintptr_t)found;
    return CUDA_SUCCESS;
}

static void free_host(struct range *found)
{
    numbers.host--;
    numbers.host_bytes -= (long long)found->size;
    give_addresses_back(found->base, (found->size + PAGE - 1) / PAGE * PAGE);
    drop_range(&host, found);
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    ENTER(CONTEXT);
    struct range *found = range_at(&host, (CUdeviceptr)(uintptr_t)address);
    if (!found) return refuse(CUDA_ERROR_INVALID_VALUE, "%p is not pinned", address);
    CUresult status = wait_for_users(found->base, found->size);
    if (status == CUDA_SUCCESS) free_host(found);
    return status;
}

/* What belongs to a context goes with it; handles and reservations are the process's. */
void forget_allocations(void)
{
    for (size_t i = device.count; i-- > 0;)
        if (!device.items[i].handle) free_allocation(&device.items[i]);
    while (host.count) free_host(&host.items[host.count - 1]);
}
