# LibTorch from the pinned wheel, as an imported target of our own: the wheel's TorchConfig asks for a CUDA toolkit.
# Only the CPU half is linked; the engine loads torch_cuda at run time where a GPU is.
set(FUSION_TORCH_DIR ${FUSION_CACHE}/torch)
if(NOT EXISTS ${FUSION_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch is not in ${FUSION_TORCH_DIR}: run 'make deps', or configure with -DFUSION_TORCH=OFF")
endif()
add_library(fusion_torch INTERFACE)
target_include_directories(fusion_torch SYSTEM INTERFACE
  ${FUSION_TORCH_DIR}/include ${FUSION_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(fusion_torch INTERFACE
  ${FUSION_TORCH_DIR}/lib/libtorch_cpu.so ${FUSION_TORCH_DIR}/lib/libc10.so)
target_link_options(fusion_torch INTERFACE
  -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags -Wl,-rpath,${FUSION_TORCH_DIR}/lib)
