// Layers and output head of Llama-like models, forward and backward, on CPUs with AMX: float32 weights and sums, products
// in bfloat16. Compiled on the machine that runs it (argosy.native); called through library.py.
#include <sys/syscall.h>
#include <unistd.h>

#include "head.h"

namespace {

template <typename F>
void together(int64_t threads, F body) {
#pragma omp parallel num_threads(threads)
  {
    // Numbers too small to be normal cost a hundred cycles each; AMX takes them as 0 anyway.
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | _MM_FLUSH_ZERO_ON | 0x40);
    configure_tiles();
    body();
    _tile_release();
    _mm_setcsr(before);
  }
}

}  // namespace

extern "C" {

int argosy_can_train() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

int64_t argosy_layer_workspace(const ArgosyLayer* l, int backward) { return divide_layer(*l, backward != 0).bytes; }

void argosy_layer(const ArgosyLayer* l, const float* x, float* z) {
  together(l->threads, [&] { run_layer(*l, x, z); });
}

void argosy_layer_backward(const ArgosyLayer* l, const float* x, const float* of_z, float* of_x) {
  together(l->threads, [&] { run_layer_backward(*l, x, of_z, of_x); });
}

int64_t argosy_head_workspace(const ArgosyHead* h, int backward) { return divide_head(*h, backward != 0).bytes; }

void argosy_head(const ArgosyHead* h) {
  together(h->threads, [&] { run_head(*h); });
}

void argosy_head_backward(const ArgosyHead* h) {
  together(h->threads, [&] { run_head_backward(*h); });
}

}  // extern "C"
