/* What the stub's device is: names, numbers, limits; errors by name; functions by name.
 *
 * The device is of the class of an H200: compute capability 9.0 unless a test sets another, 132
 * processors, 227 KiB of shared memory for a block that asks. An attribute that is not in the table
 * is 0, since CUDA's programs ask for many that do not matter. Read next: gate.c.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { DEVICES = 1, LAST_ATTRIBUTE = 160, LONGEST_NAME = 256 };

static CUresult known_device(CUdevice device)
{
    if (device < 0 || device >= DEVICES)
        return refuse(CUDA_ERROR_INVALID_DEVICE, "no device %d", device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    ENTER(NOTHING);
    *version = (int)options.version;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    ENTER(INITIALIZED);
    *count = DEVICES;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(INITIALIZED);
    *device = 0;
    return known_device(ordinal);
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    ENTER(INITIALIZED);
    snprintf(name, (size_t)size, "stub");
    return known_device(device);
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    ENTER(INITIALIZED);
    memset(uuid, 7, sizeof *uuid);
    return known_device(device);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *size, CUdevice device)
{
    ENTER(INITIALIZED);
    *size = (size_t)options.total_bytes;
    return known_device(device);
}

static int attribute(int number)
{
    switch (number) {
    case 1: case 2: case 56: return MOST_THREADS; /* of a block, along x; 56 threads of a texture */
    case 3: return MOST_THREADS;
    case 4: return MOST_BLOCK_Z;
    case 5: return (int)MOST_GRID_X;
    case 6: case 7: return MOST_GRID_YZ;
    case 8: return STATIC_SHARED;
    case 9: return 65536; /* constant memory */
    case 10: return 32;   /* threads of a warp */
    case 12: case 82: return REGISTERS;
    case 13: return 1980000; /* clock, kHz */
    case 15: case 18: case 19: case 31: case 41: case 115: return 1;
    case 16: return 132;
    case 36: return 3201000;
    case 37: return 6144;     /* bits of the memory bus */
    case 38: return 50 << 20; /* L2 */
    case 39: return 2048;     /* threads of a processor */
    case 40: return 3;        /* copy engines */
    case 75: return (int)options.capability / 10;
    case 76: return (int)options.capability % 10;
    case 81: return 228 * 1024;
    case 97: return MOST_SHARED;
    case 102: return options.maps != 0;
    default: return 0;
    }
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute number, CUdevice device)
{
    ENTER(INITIALIZED);
    if ((int)number <= 0 || (int)number > LAST_ATTRIBUTE)
        return refuse(CUDA_ERROR_INVALID_VALUE, "no device attribute %d", (int)number);
    *value = attribute((int)number);
    return known_device(device);
}

static const struct {
    int status;
    const char *name;
} ERRORS[] = {
    {0, "CUDA_SUCCESS"},
    {1, "CUDA_ERROR_INVALID_VALUE"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {4, "CUDA_ERROR_DEINITIALIZED"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"},
    {200, "CUDA_ERROR_INVALID_IMAGE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {218, "CUDA_ERROR_INVALID_PTX"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
    {400, "CUDA_ERROR_INVALID_HANDLE"},
    {401, "CUDA_ERROR_ILLEGAL_STATE"},
    {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {907, "CUDA_ERROR_CAPTURED_EVENT"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

EXPORT CUresult cuGetErrorName(CUresult status, const char **name)
{
    ENTER(NOTHING);
    *name = NULL;
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].status == (int)status) *name = ERRORS[i].name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult status, const char **text)
{
    return cuGetErrorName(status, text);
}

/* Functions whose second version has other arguments, and CUDA's version that brought it; all other
 * second versions are older than anybody who asks. */
static const struct {
    const char *name;
    int since;
} OTHER_ARGUMENTS[] = {{"cuStreamGetCtx", 12050}, {"cuGetProcAddress", 12000}};

static void *exported(const char *name, int version)
{
    char second[LONGEST_NAME];
    Dl_info self;
    if (!dladdr((const void *)&stub_enter, &self)) return NULL;
    void *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD), *found = NULL;
    if (!library) return NULL;
    int has_second = 1;
    for (size_t i = 0; i < sizeof OTHER_ARGUMENTS / sizeof *OTHER_ARGUMENTS; i++)
        if (!strcmp(OTHER_ARGUMENTS[i].name, name)) has_second = version >= OTHER_ARGUMENTS[i].since;
    snprintf(second, sizeof second, "%s_v2", name);
    if (has_second) found = dlsym(library, second);
    if (!found) found = dlsym(library, name);
    dlclose(library);
    return found;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult *found)
{
    ENTER(NOTHING);
    (void)flags;
    *function = exported(name, version);
    if (found) *found = *function ? 0 : 1;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#ifndef STUB_CHECKS_CUDA_H /* which has only the latest prototype of each name */
EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
#endif
