//! The allocator of the process.

/// mimalloc replaces the allocator of musl, which takes a lock for each call. It does not replace the allocator of
/// glibc: there, mimalloc did not reduce the CPU time of requests measurably, and took 9 MB more memory.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Size in bytes from which glibc maps an allocation on its own, and unmaps it when it is freed. By default, glibc raises
/// this size when it frees a larger allocation, and then keeps the memory of large bodies.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD_BYTES: libc::c_int = 64 * 1024;

/// Makes the allocator return the memory of large bodies to the system. To be called when the process starts.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no crate has a safe function for it")]
pub fn return_freed_memory() {
    // SAFETY: changes a parameter of the allocator, which is allowed at any time. On failure, the default stays.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) };
}

/// Does nothing: only glibc has a parameter that makes it return freed memory.
#[cfg(not(target_env = "gnu"))]
pub fn return_freed_memory() {}
