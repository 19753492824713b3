/* The stub's events: how often one was recorded, which record its stream has reached, and when.
 *
 * In: handles. Out: whether and when a record is reached. The one idea: a wait is for the latest
 * record so far, and a later one does not delay it; so each record has a number. An event that was
 * destroyed lives on as long as queued work names it. Read next: streams.c.
 */
#define _GNU_SOURCE
#include "streams.h"

#include <stdlib.h>

enum { FIRST_EVENT = 0x100000 };

static struct slots events;

static struct event *event_of(CUevent handle) { return item_of(&events, handle, FIRST_EVENT); }

/* Nobody may ask for an event that was recorded last while its stream captured. */
static CUresult was_captured(void)
{
    return refuse(CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a capture");
}

static CUresult no_event(CUevent handle)
{
    return refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no event", (void *)handle);
}

void forget_event(struct event *event)
{
    if (event->used || event->queued) return;
    clear_nodes(&event->after);
    free(event);
}

EXPORT CUresult cuEventCreate(CUevent *handle, unsigned int flags)
{
    ENTER(CONTEXT);
    if (flags > 7) return refuse(CUDA_ERROR_INVALID_VALUE, "an event with flags %u", flags);
    struct event *event = calloc(1, sizeof *event);
    event->used = 1;
    event->timing = !(flags & CU_EVENT_DISABLE_TIMING);
    event->slot = take_slot(&events, event);
    *handle = (CUevent)(FIRST_EVENT + STEP * event->slot);
    numbers.events++;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle)
{
    ENTER(CONTEXT);
    struct event *event = event_of(handle);
    if (!event) return no_event(handle);
    give_slot(&events, event->slot);
    event->used = 0;
    forget_event(event);
    numbers.events--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream where)
{
    ENTER(CONTEXT);
    struct event *event = event_of(handle);
    struct stream *stream = stream_of(where);
    if (!event) return no_event(handle);
    if (!stream) return no_stream(where);
    if (stream->captures) {
        capture_record(stream, event);
        return CUDA_SUCCESS;
    }
    event->captured = 0;
    event->stream = stream;
    put(stream, (struct work){.kind = RECORD, .event = event, .number = ++event->records});
    return queued(stream);
}

EXPORT CUresult cuEventQuery(CUevent handle)
{
    ENTER(CONTEXT);
    struct event *event = event_of(handle);
    if (!event) return no_event(handle);
    if (event->captured) return was_captured();
    if (event->reached >= event->records) return CUDA_SUCCESS;
    if (event->stream->first) run_one(event->stream);
    return numbers.sticky ? (CUresult)numbers.sticky : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent handle)
{
    ENTER(CONTEXT);
    struct event *event = event_of(handle);
    if (!event) return no_event(handle);
    if (event->captured) return was_captured();
    run_until(event, event->records, event->stream);
    return (CUresult)numbers.sticky;
}

EXPORT CUresult cuEventElapsedTime_v2(float *time_ms, CUevent start, CUevent end)
{
    ENTER(CONTEXT);
    struct event *first = event_of(start), *last = event_of(end);
    if (!first || !last) return no_event(first ? end : start);
    if (first->captured || last->captured) return was_captured();
    if (!first->timing || !last->timing || !first->records || !last->records)
        return refuse(CUDA_ERROR_INVALID_HANDLE, "an event without timing, or never recorded");
    if (first->reached < first->records || last->reached < last->records)
        return CUDA_ERROR_NOT_READY;
    *time_ms = (float)((double)(last->at_ns - first->at_ns) * 1e-6);
    return CUDA_SUCCESS;
}

#ifndef STUB_CHECKS_CUDA_H
EXPORT CUresult cuEventElapsedTime(float *time_ms, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(time_ms, start, end);
}
#endif

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent wanted, unsigned int flags)
{
    ENTER(CONTEXT);
    struct stream *stream = stream_of(handle);
    struct event *event = event_of(wanted);
    if (!stream) return no_stream(handle);
    if (!event) return no_event(wanted);
    if (flags) return refuse(CUDA_ERROR_INVALID_VALUE, "a wait with flags %u", flags);
    if (stream->captures || event->captured) return capture_wait(stream, event);
    if (!event->records) return CUDA_SUCCESS;
    put(stream, (struct work){.kind = WAIT, .event = event, .number = event->records,
                              .source = event->stream});
    return queued(stream);
}

void forget_events(void)
{
    for (size_t i = 0; i < events.count; i++) free(events.items[i]);
    events.count = events.free_count = 0;
    numbers.events = 0;
}
