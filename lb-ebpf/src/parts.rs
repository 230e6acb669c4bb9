//! The parts of the path as functions of their own, one for each kind of packet.
//!
//! They are global in the object, so the verifier walks each once, without knowledge of its arguments except for their
//! types (kernel 5.13), and not again for every path that leads to it.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::forward::{Part, Parts, Scratch, Step, parts};
use lb_common::l3::L3;

use crate::frame::Frame;
use crate::kernel::{self, Kernel};
use crate::maps::ASKS_FOR_MAPS;
use crate::skb::Skb;

/// The working memory that a part is lent.
#[inline(always)]
fn lent<'a>(scratch: *mut Scratch) -> Option<&'a mut Scratch> {
    if ASKS_FOR_MAPS.load() != 0 {
        // The memory is the same: parts run in packets' programs, which stay on their CPU.
        return kernel::scratch();
    }
    // SAFETY: null, for which the verifier requires a check, or the working memory that its only user lends.
    unsafe { scratch.as_mut() }
}

/// Declares the function of each part for the kinds of packets that need it.
macro_rules! functions {
    (
        alone { $($lone:ident: $alone:ident;)* }
        $($part:ident: $skb:ident $l3:ident $($frame:ident)?;)*
    ) => {
        impl Parts<Kernel> for Skb<'_> {
            #[inline(always)]
            fn part(&mut self, _: &Kernel, scratch: &mut Scratch, part: Part) -> Step<()> {
                match part {
                    $(Part::$lone => parts::load_result($alone(scratch), scratch),)*
                    $(Part::$part => parts::load_result($skb(self.raw(), scratch), scratch),)*
                }
            }
        }

        impl Parts<Kernel> for L3<Skb<'_>> {
            #[inline(always)]
            fn part(&mut self, _: &Kernel, scratch: &mut Scratch, part: Part) -> Step<()> {
                match part {
                    $(Part::$lone => parts::load_result($alone(scratch), scratch),)*
                    $(Part::$part => parts::load_result($l3(self.0.raw(), scratch), scratch),)*
                }
            }
        }

        impl Parts<Kernel> for Frame<'_> {
            #[inline(always)]
            fn part(&mut self, _: &Kernel, scratch: &mut Scratch, part: Part) -> Step<()> {
                match part {
                    $(Part::$lone => parts::load_result($alone(scratch), scratch),)*
                    $($(Part::$part => parts::load_result($frame(self.0.ctx, scratch), scratch),)?)*
                    // XDP leaves packets that need the other parts to tc.
                    _ => parts::run(self, &Kernel, scratch, part),
                }
            }
        }

        $(
            #[unsafe(no_mangle)]
            extern "C" fn $alone(scratch: *mut Scratch) -> u32 {
                // VERIFIER: no caller passes null, but a pointer that is an argument needs the test.
                let Some(scratch) = lent(scratch) else { return 1 };
                parts::store_result(parts::run_alone(&Kernel, scratch, Part::$lone), scratch)
            }
        )*

        $(
            #[unsafe(no_mangle)]
            extern "C" fn $skb(context: *mut __sk_buff, scratch: *mut Scratch) -> u32 {
                let Some(scratch) = lent(scratch) else { return 1 };
                let context = TcContext::new(context);
                let mut packet = Skb::linear(&context);
                parts::store_result(parts::run(&mut packet, &Kernel, scratch, Part::$part), scratch)
            }

            #[unsafe(no_mangle)]
            extern "C" fn $l3(context: *mut __sk_buff, scratch: *mut Scratch) -> u32 {
                let Some(scratch) = lent(scratch) else { return 1 };
                let context = TcContext::new(context);
                let mut packet = Skb::l3_linear(&context);
                parts::store_result(parts::run(&mut packet, &Kernel, scratch, Part::$part), scratch)
            }

            $(
                #[unsafe(no_mangle)]
                extern "C" fn $frame(context: *mut xdp_md, scratch: *mut Scratch) -> u32 {
                    let Some(scratch) = lent(scratch) else { return 1 };
                    let context = XdpContext::new(context);
                    let mut packet = Frame(&context);
                    parts::store_result(parts::run(&mut packet, &Kernel, scratch, Part::$part), scratch)
                }
            )?
        )*
    };
}

functions! {
    alone {
        Recall: recall;
        Prepare: prepare;
        Commit: commit;
    }
    Parse: parse l3_parse frame_parse;
    Icmp: icmp l3_icmp;
    AssignPorts: assign_ports l3_assign_ports;
    Seek: seek l3_seek frame_seek;
    Mend: mend l3_mend frame_mend;
    SeekOut: seek_out l3_seek_out;
    Refuse: refuse l3_refuse frame_refuse;
    First: first l3_first frame_first;
    Masquerade: masquerade l3_masquerade;
    Touch: touch l3_touch frame_touch;
    Exit: choose_exit l3_choose_exit frame_choose_exit;
    Rewrite: rewrite l3_rewrite frame_rewrite;
    Reserve: reserve l3_reserve frame_reserve;
    ReserveOwn: reserve_own l3_reserve_own;
    HostSeek: host_seek l3_host_seek;
    HostFirst: host_first l3_host_first;
    HostExit: host_exit l3_host_exit;
    Delivery: delivery l3_delivery frame_delivery;
}
