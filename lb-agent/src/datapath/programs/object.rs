//! The object that `build.rs` makes of `lb-ebpf`.

/// The compiled programs: the ELF object that `build.rs` made of `lb-ebpf`.
pub const fn object() -> &'static [u8] {
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb-ebpf"))
}
