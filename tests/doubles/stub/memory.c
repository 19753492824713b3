/* The stub's virtual memory: reservations, handles, mappings.
 *
 * In: sizes and addresses. Out: addresses of this process, so that whatever runs kernels can read
 * and write them. The one idea: all physical memory is one sparse file; a handle is a part of it
 * that no other handle ever gets, and a mapping is mmap of that part without access until
 * cuMemSetAccess, so that a stray access is a fault here as it is on a GPU. Rules are those of
 * `testing/fake_driver.py`: what queued work still uses is not unmapped, a mapping is taken
 * away whole, nothing is mapped over anything. Read next: ranges.c, allocations.c, streams.c.
 */
#define _GNU_SOURCE
#include "ranges.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FIRST_HANDLE = 0x1000 };

struct handle {
    size_t size;
    off_t offset; /* in the file */
    int references, mappings;
};
static struct handle *handles;
static size_t handle_count, handle_room;
static int file = -1;
static off_t file_end;
/* What other files ask. */

CUdeviceptr hole_in(CUdeviceptr address, size_t size)
{
    CUdeviceptr end = address + size;
    while (address < end) {
        struct range *found = covering(&device, address);
        if (!found || !found->access) return address ? address : 1;
        address = found->base + found->size;
    }
    return 0;
}

int pinned(uintptr_t address, size_t size)
{
    struct range *found = covering(&host, address);
    if (!found) return overlaps(&host, address, size) ? -1 : 0;
    return address + size <= found->base + found->size ? 1 : -1;
}

/* The first address of a range that a kernel may not touch; 0: it may touch all of it. */
EXPORT CUdeviceptr stub_hole(CUdeviceptr address, size_t size)
{
    static struct stub_call here = {.name = "stub_hole"};
    __attribute__((cleanup(stub_leave))) int held = 0;
    (void)held;
    stub_enter(&here, NOTHING);
    return hole_in(address, size);
}

/* Handles. */

static struct handle *referenced(CUmemGenericAllocationHandle number)
{
    if (number < FIRST_HANDLE || number - FIRST_HANDLE >= handle_count) return NULL;
    struct handle *found = &handles[number - FIRST_HANDLE];
    return found->references ? found : NULL;
}

static void collect(struct handle *handle)
{
    if (handle->references || handle->mappings) return;
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, handle->offset, (off_t)handle->size);
    numbers.used_bytes -= (long long)handle->size;
    numbers.handles--;
}

static CUresult make_fresh(struct handle *handle)
{
    if (ftruncate(file, file_end)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!options.fresh) return CUDA_SUCCESS;
    void *seen = mmap(NULL, handle->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, handle->offset);
    if (seen == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(seen, FRESH_BYTE, handle->size);
    munmap(seen, handle->size);
    return CUDA_SUCCESS;
}

static int known_place(const CUmemLocation *location)
{
    return (int)location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == 0;
}

static int known_kind(const CUmemAllocationProp *prop)
{
    return prop && (int)prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && known_place(&prop->location);
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *number, size_t size,
                            const CUmemAllocationProp *prop, unsigned long long flags)
{
    ENTER(SOUND);
    if (!options.maps) return refuse(CUDA_ERROR_NOT_SUPPORTED, "the device maps nothing");
    if (!whole(size) || flags || !known_kind(prop))
        return refuse(CUDA_ERROR_INVALID_VALUE, "cuMemCreate of %zu bytes: granules, kind", size);
    if (!fits(size))
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "%lld bytes are in use", numbers.used_bytes);
    if (handle_count == handle_room) {
        size_t room = handle_room ? 2 * handle_room : 64;
        struct handle *more = realloc(handles, room * sizeof *more);
        if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
        handles = more;
        handle_room = room;
    }
    if (file < 0) file = memfd_create("stub-libcuda", MFD_CLOEXEC);
    struct handle *made = &handles[handle_count];
    *made = (struct handle){.size = size, .offset = file_end, .references = 1};
    file_end += (off_t)size;
    if (make_fresh(made) != CUDA_SUCCESS)
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "this machine has no %zu bytes: %s", size,
                      strerror(errno));
    *number = FIRST_HANDLE + handle_count++;
    numbers.used_bytes += (long long)size;
    numbers.handles++;
    numbers.references++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle number)
{
    ENTER(SOUND);
    struct handle *handle = referenced(number);
    if (!handle) return refuse(CUDA_ERROR_INVALID_VALUE, "handle %llu has no reference", number);
    handle->references--;
    numbers.references--;
    collect(handle);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *prop,
                                              CUmemAllocationGranularity_flags option)
{
    ENTER(SOUND);
    if (!known_kind(prop) || (int)option < 0 || (int)option > 1)
        return refuse(CUDA_ERROR_INVALID_VALUE, "granularity of an unknown kind of memory");
    *size = (size_t)options.granularity;
    return CUDA_SUCCESS;
}

/* Addresses. */

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment,
                                    CUdeviceptr hint, unsigned long long flags)
{
    ENTER(SOUND);
    size_t granule = (size_t)options.granularity;
    if (!whole(size) || flags || hint % granule || (alignment & (alignment - 1)))
        return refuse(CUDA_ERROR_INVALID_VALUE, "reservation of %zu bytes: not whole, or aligned",
                      size);
    long long taken = 0;
    for (size_t i = 0; i < reserved.count; i++) taken += (long long)reserved.items[i].size;
    CUdeviceptr found = 0;
    if (taken + (long long)size <= options.address_bytes)
        found = addresses(hint, size, alignment > granule ? alignment : granule);
    if (!found) return refuse(CUDA_ERROR_OUT_OF_MEMORY, "the address space is full");
    add_range(&reserved, (struct range){.base = found, .size = size});
    numbers.reservations++;
    *address = found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    ENTER(SOUND);
    struct range *found = range_at(&reserved, address);
    if (!found || found->size != size)
        return refuse(CUDA_ERROR_INVALID_VALUE, "[%#llx, +%zu) was not reserved so", address, size);
    if (overlaps(&device, address, size))
        return refuse(CUDA_ERROR_INVALID_VALUE, "something is mapped in [%#llx, +%zu)", address,
                      size);
    drop_range(&reserved, found);
    give_addresses_back(address, size);
    numbers.reservations--;
    return CUDA_SUCCESS;
}

/* Mappings. */

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                         CUmemGenericAllocationHandle number, unsigned long long flags)
{
    ENTER(CONTEXT);
    struct handle *handle = referenced(number);
    struct range *room = covering(&reserved, address);
    if (!handle) return refuse(CUDA_ERROR_INVALID_VALUE, "handle %llu was released", number);
    if (flags || !whole(size) || address % (size_t)options.granularity)
        return refuse(CUDA_ERROR_INVALID_VALUE, "[%#llx, +%zu) is not whole granules", address, size);
    if (offset || size != handle->size)
        return refuse(CUDA_ERROR_INVALID_VALUE, "a part of handle %llu cannot be mapped", number);
    if (!room || address + size > room->base + room->size)
        return refuse(CUDA_ERROR_INVALID_VALUE, "[%#llx, +%zu) is not reserved", address, size);
    if (overlaps(&device, address, size))
        return refuse(CUDA_ERROR_INVALID_VALUE, "[%#llx, +%zu) is mapped already", address, size);
    if (mmap((void *)(uintptr_t)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, file,
             handle->offset) == MAP_FAILED)
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "mmap: %s", strerror(errno));
    add_range(&device, (struct range){.base = address, .size = size, .handle = number});
    handle->mappings++;
    numbers.mappings++;
    return CUDA_SUCCESS;
}

/* Whether whole mappings tile a range: how many; 0: none do. */
static size_t tiles(CUdeviceptr address, size_t size)
{
    size_t count = 0;
    CUdeviceptr end = address;
    while (end < address + size) {
        struct range *found = range_at(&device, end);
        if (!found || !found->handle) return 0;
        end += found->size;
        count++;
    }
    return end == address + size ? count : 0;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *wanted,
                               size_t count)
{
    ENTER(CONTEXT);
    if (!wanted || count != 1 || !known_place(&wanted->location) ||
        (int)wanted->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return refuse(CUDA_ERROR_INVALID_VALUE, "access for something else than this device");
    if (!tiles(address, size))
        return refuse(CUDA_ERROR_INVALID_VALUE, "[%#llx, +%zu) is not whole mappings", address,
                      size);
    if (mprotect((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE))
        return refuse(CUDA_ERROR_OUT_OF_MEMORY, "mprotect: %s", strerror(errno));
    for (CUdeviceptr place = address; place < address + size; place = range_at(&device, place)->size + place)
        range_at(&device, place)->access = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    ENTER(CONTEXT);
    if (tiles(address, size) != 1) /* cuda.h allows more; drivers were seen to fail */
        return refuse(CUDA_ERROR_INVALID_VALUE, "[%#llx, +%zu) is not one whole mapping", address,
                      size);
    if (used_by_work(address, size))
        return break_context(CUDA_ERROR_ILLEGAL_ADDRESS,
                             "[%#llx, +%zu) is unmapped and queued work is still to use it", address,
                             size);
    struct range *found = range_at(&device, address);
    struct handle *handle = &handles[found->handle - FIRST_HANDLE];
    pages((void *)(uintptr_t)address, size, PROT_NONE, MAP_FIXED);
    drop_range(&device, found);
    handle->mappings--;
    numbers.mappings--;
    collect(handle);
    return CUDA_SUCCESS;
}
void forget_memory(void)
{
    forget_allocations();
    for (size_t i = 0; i < reserved.count; i++)
        give_addresses_back(reserved.items[i].base, reserved.items[i].size);
    reserved.count = device.count = 0;
    handle_count = 0;
    if (file >= 0) close(file);
    file = -1;
    file_end = 0;
}
