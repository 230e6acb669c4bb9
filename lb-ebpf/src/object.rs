//! Parts of every eBPF object: the licence, and a panic handler that is never reached.

/// The verifier refuses any object in which this could be reached.
#[panic_handler]
#[expect(clippy::missing_const_for_fn, reason = "the language wants this signature")]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends some helpers only to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
