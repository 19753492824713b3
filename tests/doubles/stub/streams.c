/* The stub's streams: in-order queues; work is done when somebody waits.
 *
 * In: pieces of work, records and waits. Out: the same pieces, done in an order that CUDA allows.
 * The one idea: a missing wait shows only if the work is not done yet when it is needed, so with the
 * option `late` nothing is done before the host waits for it, and then only what it waits for. With
 * `late=0` work is done when it is queued: a GPU that takes no time, over which the host's own cost
 * can be measured. What a copy reaches is looked at when it is queued, as CUDA does, and again when
 * it is done. The model is `testing/fake_driver.py`. Read next: events.c, copies.c,
 * launches.c.
 */
#define _GNU_SOURCE
#include "streams.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FIRST_STREAM = 0x1000, MOST_QUEUED = 1 << 14 };
static struct slots streams;
struct stream legacy = {.used = 1, .blocking = 1}; /* the default stream */
static struct stream **left_over; /* destroyed: only their queues count */
static size_t left_over_count;
static struct work *spare; /* pieces of work to be used again */

size_t take_slot(struct slots *slots, void *item)
{
    if (slots->free_count) {
        size_t slot = slots->free[--slots->free_count];
        slots->items[slot] = item;
        return slot;
    }
    if (slots->count == slots->room) {
        slots->room = slots->room ? 2 * slots->room : 64;
        slots->items = realloc(slots->items, slots->room * sizeof *slots->items);
        slots->free = realloc(slots->free, slots->room * sizeof *slots->free);
        if (!slots->items || !slots->free) abort();
    }
    slots->items[slots->count] = item;
    return slots->count++;
}

void give_slot(struct slots *slots, size_t slot)
{
    slots->items[slot] = NULL;
    slots->free[slots->free_count++] = slot;
}

void *item_of(const struct slots *slots, const void *handle, uintptr_t first)
{
    uintptr_t number = (uintptr_t)handle;
    if (number < first || (number - first) % STEP) return NULL;
    size_t slot = (number - first) / STEP;
    return slot < slots->count ? slots->items[slot] : NULL;
}

struct stream *stream_of(CUstream handle)
{
    return (uintptr_t)handle <= 2 ? &legacy : item_of(&streams, handle, FIRST_STREAM);
}

int takes_part_in_capture(CUstream handle) { return stream_of(handle)->captures != 0; }

void forget_capture(unsigned long id)
{
    for (size_t i = 0; i < streams.count; i++) {
        struct stream *stream = streams.items[i];
        if (!stream || stream->captures != id) continue;
        stream->captures = 0;
        clear_nodes(&stream->after);
    }
}

int known_stream(CUstream handle) { return stream_of(handle) != NULL; }

CUresult no_stream(CUstream handle)
{
    return refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no stream", (void *)handle);
}

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Doing work. */

static void do_copy(const struct work *work)
{
    const char *what = work->kind == FILL ? "a fill" : "a copy";
    CUdeviceptr hole = 0;
    if (work->to_device) hole = hole_in(work->to, work->size);
    if (!hole && work->from_device) hole = hole_in(work->from, work->size);
    int host_gone = (!work->to_device && pinned(work->to, work->size) != 1) ||
                    (work->kind == COPY && !work->from_device && pinned(work->from, work->size) != 1);
    if (hole)
        break_context(CUDA_ERROR_ILLEGAL_ADDRESS, "%s reaches %#llx, which has no access", what, hole);
    else if (host_gone)
        break_context(CUDA_ERROR_ILLEGAL_ADDRESS, "%s reaches host memory that was given back", what);
    else if (options.most_moved && work->size > (size_t)options.most_moved)
        return; /* steps of many GB on a machine that has not so much memory */
    else if (work->kind == FILL)
        memset((void *)work->to, work->byte, work->size);
    else
        memmove((void *)work->to, (const void *)work->from, work->size);
}

static void recycle(struct work *work)
{
    if (work->event) {
        work->event->queued--;
        forget_event(work->event);
    }
    work->next = spare;
    spare = work;
}

/* A node of a graph. Its arguments stay with the graph; who looks at launches gets a copy. */
void run_node(const struct work *work)
{
    if (numbers.sticky) return;
    if (work->kind != LAUNCH) {
        do_copy(work);
        return;
    }
    numbers.launches++;
    run_launch(work->launch);
    if (options.kept > 0) keep_launch(copy_launch(work->launch));
}

/* Does the oldest piece of a stream. After an error that lasts nothing is done any more. */
void run_one(struct stream *stream)
{
    struct work *work = stream->first;
    if (work->kind == WAIT && !numbers.sticky) {
        run_until(work->event, work->number, work->source);
        if (stream->first != work) return;
    }
    stream->first = work->next;
    if (!stream->first) stream->last = NULL;
    stream->queued--;
    if (work->kind == RECORD) {
        if (work->number > work->event->reached) {
            work->event->reached = work->number;
            work->event->at_ns = now_ns();
        }
    } else if (work->kind == LAUNCH) {
        if (!numbers.sticky) run_launch(work->launch);
        keep_launch(work->launch);
    } else if (work->kind == GRAPH) {
        run_graph(work->graph);
        let_go(work->graph);
    } else if (work->kind != WAIT && !numbers.sticky) {
        do_copy(work);
    }
    recycle(work);
}

/* A wait is for a record that was queued before it, so that this ends. */
void run_until(struct event *event, unsigned long number, struct stream *source)
{
    while (event->reached < number && source->first) run_one(source);
}

CUresult finish(struct stream *stream)
{
    while (stream->first) run_one(stream);
    return (CUresult)numbers.sticky;
}

CUresult finish_everything(void)
{
    finish(&legacy);
    for (size_t i = 0; i < streams.count; i++)
        if (streams.items[i]) finish(streams.items[i]);
    for (size_t i = 0; i < left_over_count; i++) finish(left_over[i]);
    return (CUresult)numbers.sticky;
}

void finish_blocking(void)
{
    for (size_t i = 0; i < streams.count; i++) {
        struct stream *stream = streams.items[i];
        if (stream && stream->blocking) finish(stream);
    }
}

/* Queueing. */

struct work *put(struct stream *stream, struct work given)
{
    if (stream->captures) {
        capture_work(stream, given);
        return NULL;
    }
    struct work *work = spare;
    if (work)
        spare = work->next;
    else if (!(work = malloc(sizeof *work)))
        abort();
    *work = given;
    work->next = NULL;
    if (work->event) work->event->queued++;
    if (stream->last)
        stream->last->next = work;
    else
        stream->first = work;
    stream->last = work;
    stream->queued++;
    return work;
}

/* After something was queued. The default stream and streams that wait for it take turns. */
CUresult queued(struct stream *stream)
{
    if (stream->captures) return CUDA_SUCCESS;
    if (stream == &legacy) finish_blocking();
    if (!options.late || stream == &legacy) return finish(stream);
    while (stream->queued > MOST_QUEUED) run_one(stream);
    return CUDA_SUCCESS;
}

/* What a launch reaches is not known, but for the addresses among its arguments. */
static int launch_uses(const struct launch *launch, CUdeviceptr address, size_t size)
{
    for (size_t at = 0; at + 8 <= launch->parameter_bytes; at += 8) {
        CUdeviceptr word;
        memcpy(&word, launch->parameters + at, sizeof word);
        if (word >= address && word < address + size) return 1;
    }
    return 0;
}

static int work_uses(const struct work *work, CUdeviceptr address, size_t size)
{
    if (work->kind == LAUNCH) return launch_uses(work->launch, address, size);
    if (work->kind == GRAPH) return graph_uses(work->graph, work_uses, address, size);
    if (work->kind != COPY && work->kind != FILL) return 0;
    int to = work->to < address + size && address < work->to + work->size;
    int from = work->kind == COPY && work->from < address + size && address < work->from + work->size;
    return to || from;
}

static struct work *find_work(int (*wanted)(const struct work *, CUdeviceptr, size_t),
                              CUdeviceptr address, size_t size)
{
    for (size_t i = 0; i <= streams.count + left_over_count; i++) {
        struct stream *stream = i == 0                ? &legacy
                                : i <= streams.count ? streams.items[i - 1]
                                                      : left_over[i - 1 - streams.count];
        for (struct work *work = stream ? stream->first : NULL; work; work = work->next)
            if (wanted(work, address, size)) return work;
    }
    return NULL;
}

int used_by_work(CUdeviceptr address, size_t size)
{
    return find_work(work_uses, address, size) != NULL;
}

static int is_of_image(const struct work *work, CUdeviceptr image, size_t unused)
{
    (void)unused;
    if (work->kind == GRAPH) return graph_uses(work->graph, is_of_image, image, 0);
    return work->kind == LAUNCH && (CUdeviceptr)(uintptr_t)work->launch->image == image;
}

int used_image(const void *image)
{
    return find_work(is_of_image, (CUdeviceptr)(uintptr_t)image, 0) != NULL;
}

CUresult queue_launch(CUstream handle, struct launch *launch)
{
    struct stream *stream = stream_of(handle);
    put(stream, (struct work){.kind = LAUNCH, .launch = launch});
    return queued(stream);
}

/* Streams. */

static CUresult create(CUstream *handle, unsigned flags)
{
    if (flags > CU_STREAM_NON_BLOCKING)
        return refuse(CUDA_ERROR_INVALID_VALUE, "a stream with flags %u", flags);
    struct stream *stream = calloc(1, sizeof *stream);
    stream->used = 1;
    stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    stream->slot = take_slot(&streams, stream);
    *handle = (CUstream)(FIRST_STREAM + STEP * stream->slot);
    numbers.streams++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *handle, unsigned int flags)
{
    ENTER(CONTEXT);
    return create(handle, flags);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned int flags, int priority)
{
    ENTER(CONTEXT);
    (void)priority;
    return create(handle, flags);
}

/* The stream's number is free again; its work is not lost. Streams are kept for ever, since a wait
 * may name one. */
EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
    ENTER(CONTEXT);
    struct stream *stream = stream_of(handle);
    if (!stream || stream == &legacy) return no_stream(handle);
    if (stream->captures)
        return spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream is destroyed");
    give_slot(&streams, stream->slot);
    left_over = realloc(left_over, (left_over_count + 1) * sizeof *left_over);
    left_over[left_over_count++] = stream;
    numbers.streams--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    ENTER(CONTEXT);
    struct stream *stream = stream_of(handle);
    if (!stream) return no_stream(handle);
    if (stream->captures)
        return spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the host waits for a stream");
    if (stream == &legacy) finish_blocking();
    return finish(stream);
}

/* A host that asks again and again sees the work go on, one piece at a time. */
EXPORT CUresult cuStreamQuery(CUstream handle)
{
    ENTER(CONTEXT);
    struct stream *stream = stream_of(handle);
    if (!stream) return no_stream(handle);
    if (stream->captures)
        return spoil(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the host asks for a stream");
    if (!stream->first) return CUDA_SUCCESS;
    run_one(stream);
    return numbers.sticky ? (CUresult)numbers.sticky : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    ENTER(CONTEXT);
    if (!known_stream(handle)) return no_stream(handle);
    return cuCtxGetCurrent(context);
}
/* A context that ends takes its streams and events along; their work is done or lost by then. */
void forget_streams(void)
{
    long long before = numbers.sticky;
    forget_graphs();
    numbers.sticky = before ? before : CUDA_ERROR_UNKNOWN; /* so that nothing is done any more */
    finish_everything();
    numbers.sticky = before;
    for (size_t i = 0; i < left_over_count; i++) free(left_over[i]);
    left_over_count = 0;
    for (size_t i = 0; i < streams.count; i++) free(streams.items[i]);
    streams.count = streams.free_count = 0;
    numbers.streams = 0;
    forget_events();
}
