/* The stub's memory: reservations, handles, mappings, whole allocations, pinned host memory.
 *
 * In: sizes and addresses. Out: addresses of this process, so that whatever runs kernels can read
 * and write them. The one idea: all physical memory is one sparse file; a handle is a part of it
 * that no other handle ever gets, and a mapping is mmap of that part without access until
 * cuMemSetAccess, so that a stray access is a fault here as it is on a GPU. Rules are those of
 * `testing/driver/fake_driver.py`: what queued work still uses is not unmapped, a mapping is taken
 * away whole, nothing is mapped over anything. Read next: streams.c.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FRESH_BYTE = 0xFF, PAGE = 4096, FIRST_HANDLE = 0x1000 };

struct handle {
    size_t size;
    off_t offset; /* in the file */
    int references, mappings;
};

/* A range of addresses; `handle` is its number where it is a mapping. */
struct range {
    CUdeviceptr base;
    size_t size;
    CUmemGenericAllocationHandle handle;
    int access;
};

/* Ranges that do not overlap, ascending. */
struct table {
    struct range *items;
    size_t count, room;
};

static struct table reserved, device, host; /* device: mappings and whole allocations */
static struct handle *handles;
static size_t handle_count, handle_room;
static int file = -1;
static off_t file_end;

/* Tables. */

static size_t first_behind(const struct table *table, CUdeviceptr address)
{
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table->items[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct range *covering(const struct table *table, CUdeviceptr address)
{
    size_t behind = first_behind(table, address);
    if (!behind) return NULL;
    struct range *found = &table->items[behind - 1];
    return address < found->base + found->size ? found : NULL;
}

static struct range *at(const struct table *table, CUdeviceptr base)
{
    struct range *found = covering(table, base);
    return found && found->base == base ? found : NULL;
}

static int overlaps(const struct table *table, CUdeviceptr address, size_t size)
{
    size_t behind = first_behind(table, address);
    int next = behind < table->count && table->items[behind].base < address + size;
    return next || covering(table, address) != NULL;
}

static int add(struct table *table, struct range range)
{
    if (table->count == table->room) {
        size_t room = table->room ? 2 * table->room : 64;
        struct range *items = realloc(table->items, room * sizeof *items);
        if (!items) return 0;
        table->items = items;
        table->room = room;
    }
    size_t place = first_behind(table, range.base);
    struct range *here = table->items + place;
    memmove(here + 1, here, (table->count - place) * sizeof *here);
    *here = range;
    table->count++;
    return 1;
}

static void drop(struct table *table, struct range *range)
{
    size_t place = (size_t)(range - table->items);
    memmove(range, range + 1, (table->count - place - 1) * sizeof *range);
    table->count--;
}

/* Pages. */

static void *pages(void *wanted, size_t size, int protection, int flags)
{
    void *found = mmap(wanted, size, protection,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* Addresses without access, aligned; a page behind them is never given out, so that an overrun
 * meets nothing. */
static CUdeviceptr addresses(CUdeviceptr hint, size_t size, size_t alignment)
{
    size_t most = size + alignment + PAGE;
    CUdeviceptr raw = (CUdeviceptr)(uintptr_t)pages((void *)(uintptr_t)hint, most, PROT_NONE, 0);
    if (!raw) return 0;
    CUdeviceptr base = (raw + alignment - 1) / alignment * alignment;
    if (base > raw) munmap((void *)(uintptr_t)raw, base - raw);
    munmap((void *)(uintptr_t)(base + size + PAGE), raw + most - (base + size + PAGE));
    return base;
}

static void give_addresses_back(CUdeviceptr base, size_t size)
{
    munmap((void *)(uintptr_t)base, size + PAGE);
}

static size_t granules(size_t size)
{
    size_t granule = (size_t)options.granularity;
    return (size + granule - 1) / granule * granule;
}

static int whole(size_t size) { return size && size % (size_t)options.granularity == 0; }

static int fits(size_t size)
{
    return size <= (size_t)options.total_bytes &&
           numbers.used_bytes <= options.total_bytes - (long long)size;
}

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
    add(&reserved, (struct range){.base = found, .size = size});
    numbers.reservations++;
    *address = found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    ENTER(SOUND);
    struct range *found = at(&reserved, address);
    if (!found || found->size != size)
        return refuse(CUDA_ERROR_INVALID_VALUE, "[%#llx, +%zu) was not reserved so", address, size);
    if (overlaps(&device, address, size))
        return refuse(CUDA_ERROR_INVALID_VALUE, "something is mapped in [%#llx, +%zu)", address,
                      size);
    drop(&reserved, found);
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
    add(&device, (struct range){.base = address, .size = size, .handle = number});
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
        struct range *found = at(&device, end);
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
    for (CUdeviceptr place = address; place < address + size; place = at(&device, place)->size + place)
        at(&device, place)->access = 1;
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
    struct range *found = at(&device, address);
    struct handle *handle = &handles[found->handle - FIRST_HANDLE];
    pages((void *)(uintptr_t)address, size, PROT_NONE, MAP_FIXED);
    drop(&device, found);
    handle->mappings--;
    numbers.mappings--;
    collect(handle);
    return CUDA_SUCCESS;
}

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
    add(&device, (struct range){.base = found, .size = size, .access = 1});
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
    drop(&device, found);
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
    struct range *found = at(&device, address);
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
    add(&host, (struct range){.base = found, .size = size, .access = 1});
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
    drop(&host, found);
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    ENTER(CONTEXT);
    struct range *found = at(&host, (CUdeviceptr)(uintptr_t)address);
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
