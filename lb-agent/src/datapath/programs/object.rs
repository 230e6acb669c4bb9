//! The ELF object with the compiled programs of `lb-ebpf`.

/// Returns the ELF object that `build.rs` compiled from `lb-ebpf`, or no bytes if there is none.
pub const fn object() -> &'static [u8] {
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb-ebpf"))
}
