/* The stub's modules and functions, and the driver's own linker.
 *
 * In: images, names. Out: handles. The one idea: a library is a module here, and a kernel a function;
 * a module that is unloaded keeps its code, since launches that are kept still name it. Read next:
 * images.c, launches.c.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_MODULE = 0x40000000, FIRST_FUNCTION = 0x60000000, STEP = 16 };

static struct image **images;
static size_t image_count;
static struct function **functions;
static size_t function_count;

static CUresult load(void **handle, const void *data)
{
    struct image *image = NULL;
    CUresult status = read_image(data, &image);
    if (status) return status;
    images = realloc(images, (image_count + 1) * sizeof *images);
    images[image_count] = image;
    *handle = (void *)(FIRST_MODULE + STEP * image_count++);
    numbers.modules++;
    return CUDA_SUCCESS;
}

static struct image *image_of(const void *handle)
{
    uintptr_t number = (uintptr_t)handle;
    if (number < FIRST_MODULE || (number - FIRST_MODULE) % STEP) return NULL;
    size_t index = (number - FIRST_MODULE) / STEP;
    return index < image_count ? images[index] : NULL;
}

struct function *function_of(CUfunction handle)
{
    uintptr_t number = (uintptr_t)handle;
    if (number < FIRST_FUNCTION || (number - FIRST_FUNCTION) % STEP) return NULL;
    size_t index = (number - FIRST_FUNCTION) / STEP;
    return index < function_count ? functions[index] : NULL;
}

static CUresult no_module(const void *handle)
{
    return refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no module", handle);
}

CUresult no_function(const void *handle)
{
    return refuse(CUDA_ERROR_INVALID_HANDLE, "%p is no function", handle);
}

static CUresult unload(void *handle)
{
    struct image *image = image_of(handle);
    if (!image) return no_module(handle);
    if (used_image(image->bytes))
        return break_context(CUDA_ERROR_ILLEGAL_ADDRESS,
                             "a module is unloaded and a launch of it is still queued");
    for (size_t i = 0; i < function_count; i++)
        if (functions[i] && functions[i]->image == image) functions[i] = NULL;
    images[((uintptr_t)handle - FIRST_MODULE) / STEP] = NULL;
    /* Launches that are kept name it: it is given back with everything else. */
    numbers.modules--;
    return CUDA_SUCCESS;
}

static CUresult find_function(void **handle, const void *module, const char *name)
{
    struct image *image = image_of(module);
    if (!image) return no_module(module);
    for (unsigned i = 0; i < image->function_count; i++) {
        if (strcmp(image->functions[i].name, name)) continue;
        functions = realloc(functions, (function_count + 1) * sizeof *functions);
        functions[function_count] = &image->functions[i];
        *handle = (void *)(FIRST_FUNCTION + STEP * function_count++);
        return CUDA_SUCCESS;
    }
    return refuse(CUDA_ERROR_NOT_FOUND, "the module has no kernel %s", name);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER(CONTEXT);
    return load((void **)module, image);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                   CUjit_option *names, void **values)
{
    ENTER(CONTEXT);
    (void)count, (void)names, (void)values;
    return load((void **)module, image);
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    ENTER(CONTEXT);
    return unload(module);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER(CONTEXT);
    return find_function((void **)function, module, name);
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module,
                                     const char *name)
{
    ENTER(CONTEXT);
    (void)address, (void)size;
    if (!image_of(module)) return no_module(module);
    return refuse(CUDA_ERROR_NOT_FOUND, "no global %s: the stub has none", name);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_names,
                                  void **jit_values, unsigned int jit_count, CUlibraryOption *names,
                                  void **values, unsigned int count)
{
    ENTER(CONTEXT);
    (void)jit_names, (void)jit_values, (void)jit_count, (void)names, (void)values, (void)count;
    return load((void **)library, code);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    ENTER(CONTEXT);
    return unload(library);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    ENTER(CONTEXT);
    return find_function((void **)kernel, library, name);
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    ENTER(CONTEXT);
    if (!image_of(library)) return no_module(library);
    *module = (CUmodule)(void *)library;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library,
                                   const char *name)
{
    return cuModuleGetGlobal_v2(address, size, (CUmodule)(void *)library, name);
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    ENTER(CONTEXT);
    if (!function_of((CUfunction)(void *)kernel)) return no_function(kernel);
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}

/* 0 most threads, 1 shared, 2 constant, 3 local, 4 registers, 5 PTX, 6 binary, 8 dynamic shared. */
static CUresult attribute(int *value, int wanted, CUfunction handle)
{
    const struct function *function = function_of(handle);
    if (!function) return no_function(handle);
    switch (wanted) {
    case 0: *value = (int)function->most_threads; return CUDA_SUCCESS;
    case 1: *value = (int)function->shared_bytes; return CUDA_SUCCESS;
    case 3: *value = (int)function->local_bytes; return CUDA_SUCCESS;
    case 4: *value = (int)function->registers; return CUDA_SUCCESS;
    case 5: *value = function->image->ptx_version; return CUDA_SUCCESS;
    case 6: *value = function->image->arch; return CUDA_SUCCESS;
    case 8: *value = (int)function->dynamic_bytes; return CUDA_SUCCESS;
    default: *value = 0; return CUDA_SUCCESS;
    }
}

static CUresult set_attribute(int wanted, int value, CUfunction handle)
{
    struct function *function = function_of(handle);
    if (!function) return no_function(handle);
    if (wanted != 8) return CUDA_SUCCESS; /* preferences */
    if (value < 0 || (unsigned)value + function->shared_bytes > MOST_SHARED)
        return refuse(CUDA_ERROR_INVALID_VALUE, "%d bytes of shared memory are too many", value);
    function->dynamic_bytes = (unsigned)value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute wanted, CUfunction function)
{
    ENTER(CONTEXT);
    return attribute(value, (int)wanted, function);
}

EXPORT CUresult cuKernelGetAttribute(int *value, CUfunction_attribute wanted, CUkernel kernel,
                                     CUdevice device)
{
    ENTER(CONTEXT);
    (void)device;
    return attribute(value, (int)wanted, (CUfunction)(void *)kernel);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute wanted, int value)
{
    ENTER(CONTEXT);
    return set_attribute((int)wanted, value, function);
}

EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute wanted, int value, CUkernel kernel,
                                     CUdevice device)
{
    ENTER(CONTEXT);
    (void)device;
    return set_attribute((int)wanted, value, (CUfunction)(void *)kernel);
}

void forget_modules(void)
{
    /* Kept launches still name their images, which are small. */
    image_count = function_count = 0;
    numbers.modules = 0;
}

/* The driver's own linker: what it makes of PTX is that PTX, which `cuModuleLoadData` takes, too. */

struct link {
    char *text;
    size_t size;
};

EXPORT CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *names, void **values,
                                CUlinkState *state)
{
    ENTER(CONTEXT);
    (void)count, (void)names, (void)values;
    *state = (CUlinkState)calloc(1, sizeof(struct link));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType kind, void *data, size_t size,
                                 const char *name, unsigned int count, CUjit_option *names,
                                 void **values)
{
    ENTER(CONTEXT);
    (void)name, (void)count, (void)names, (void)values;
    struct link *link = (struct link *)state;
    if (kind != 1) return refuse(CUDA_ERROR_NOT_SUPPORTED, "the stub links PTX only");
    if (link->text) return refuse(CUDA_ERROR_NOT_SUPPORTED, "the stub links one piece of PTX");
    link->text = calloc(1, size + 1);
    link->size = size + 1;
    memcpy(link->text, data, size);
    struct image *image = NULL;
    CUresult status = read_image(link->text, &image);
    if (!status) free_image(image);
    return status;
}

EXPORT CUresult cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
    ENTER(CONTEXT);
    struct link *link = (struct link *)state;
    if (!link->text) return refuse(CUDA_ERROR_INVALID_VALUE, "nothing to link");
    *image = link->text;
    *size = link->size;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkDestroy(CUlinkState state)
{
    ENTER(NOTHING);
    struct link *link = (struct link *)state;
    free(link->text);
    free(link);
    return CUDA_SUCCESS;
}
