//! What `edge_xdp` tells `edge_ingress` of a packet: translated already. It lies in the metadata in front of the packet,
//! which the driver hands on with it.

use aya_ebpf::helpers::generated::bpf_xdp_adjust_meta;
use aya_ebpf::programs::{TcContext, XdpContext};

/// Four letters that nobody else writes there.
const MARK: u32 = u32::from_ne_bytes(*b"lbXD");
/// Its length.
const LENGTH: usize = size_of::<u32>();

/// Marks a packet. Where a driver hands nothing on, tc finds no frontend in what is a packet to a backend, but for a
/// backend that is itself a frontend.
#[inline(always)]
pub(crate) fn set(context: &XdpContext) {
    // SAFETY: the frame is the program's own context.
    if unsafe { bpf_xdp_adjust_meta(context.ctx, -(LENGTH as i32)) } != 0 {
        return;
    }
    let (meta, data) = (context.metadata(), context.data());
    if meta + LENGTH <= data {
        // SAFETY: the bounds were just checked; the room was made for a word.
        unsafe { *(meta as *mut u32) = MARK };
    }
}

/// Whether a packet is marked.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
pub(crate) fn is_set(context: &TcContext) -> bool {
    // SAFETY: fields of the program's own context.
    let (meta, data) = unsafe { ((*context.skb.skb).data_meta, (*context.skb.skb).data) };
    let (meta, data) = (meta as usize, data as usize);
    if meta + LENGTH > data {
        return false;
    }
    // SAFETY: the bounds were just checked.
    unsafe { *(meta as *const u32) == MARK }
}
