/* Ranges of addresses in tables, and where their addresses come from.
 *
 * In: ranges that do not overlap. Out: which of them covers an address, and whether one is free. The
 * one idea: ranges are few, so a sorted array answers everything by bisection. Read next: memory.c,
 * allocations.c.
 */
#define _GNU_SOURCE
#include "ranges.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct table reserved, device, host;

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

struct range *covering(const struct table *table, CUdeviceptr address)
{
    size_t behind = first_behind(table, address);
    if (!behind) return NULL;
    struct range *found = &table->items[behind - 1];
    return address < found->base + found->size ? found : NULL;
}

struct range *range_at(const struct table *table, CUdeviceptr base)
{
    struct range *found = covering(table, base);
    return found && found->base == base ? found : NULL;
}

int overlaps(const struct table *table, CUdeviceptr address, size_t size)
{
    size_t behind = first_behind(table, address);
    int next = behind < table->count && table->items[behind].base < address + size;
    return next || covering(table, address) != NULL;
}

int add_range(struct table *table, struct range range)
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

void drop_range(struct table *table, struct range *range)
{
    size_t place = (size_t)(range - table->items);
    memmove(range, range + 1, (table->count - place - 1) * sizeof *range);
    table->count--;
}

/* Pages. */

void *pages(void *wanted, size_t size, int protection, int flags)
{
    void *found = mmap(wanted, size, protection,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* Addresses without access, aligned; a page behind them is never given out, so that an overrun
 * meets nothing. */
CUdeviceptr addresses(CUdeviceptr hint, size_t size, size_t alignment)
{
    size_t most = size + alignment + PAGE;
    CUdeviceptr raw = (CUdeviceptr)(uintptr_t)pages((void *)(uintptr_t)hint, most, PROT_NONE, 0);
    if (!raw) return 0;
    CUdeviceptr base = (raw + alignment - 1) / alignment * alignment;
    if (base > raw) munmap((void *)(uintptr_t)raw, base - raw);
    munmap((void *)(uintptr_t)(base + size + PAGE), raw + most - (base + size + PAGE));
    return base;
}

void give_addresses_back(CUdeviceptr base, size_t size)
{
    munmap((void *)(uintptr_t)base, size + PAGE);
}

size_t granules(size_t size)
{
    size_t granule = (size_t)options.granularity;
    return (size + granule - 1) / granule * granule;
}

int whole(size_t size) { return size && size % (size_t)options.granularity == 0; }

int fits(size_t size)
{
    return size <= (size_t)options.total_bytes &&
           numbers.used_bytes <= options.total_bytes - (long long)size;
}
