//! The whole path in parts.
//!
//! In the kernel each part is a function of its own that the verifier walks once, by itself: neither the ways through the
//! parts nor their stacks add up. A part finds its input in the working memory and leaves its result there.

use super::{
    begin, first, flows, fragments, host, icmp, ingress, ports, reject, rewrite, seek, tiers,
};
use crate::event::Verdict;
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::tables::Tables;
use crate::wire;

/// Runs the parts of a kind of packet: here in place, in the kernel as functions.
pub trait Parts<T: Tables>: Packet + Sized {
    /// Runs one part. True where it ends the path, with the verdict in [`Scratch::verdict`].
    #[inline(always)]
    fn part(&mut self, tables: &T, scratch: &mut Scratch, part: Part) -> bool {
        run(self, tables, scratch, part)
    }
}

/// Declares the parts, with the function that each is.
macro_rules! parts {
    (
        alone { $($(#[$lone_doc:meta])* $lone:ident => $run_lone:path;)* }
        $($(#[$doc:meta])* $part:ident => $run:path;)*
    ) => {
        /// A part of the path.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Part {
            $($(#[$lone_doc])* $lone,)*
            $($(#[$doc])* $part,)*
        }

        /// Runs a part in place. `part` must be a constant.
        #[inline(always)]
        pub fn run<P: Packet, T: Tables>(
            packet: &mut P,
            tables: &T,
            scratch: &mut Scratch,
            part: Part,
        ) -> bool {
            match part {
                $(Part::$part => $run(packet, tables, scratch),)*
                $(Part::$lone)|* => run_alone(tables, scratch, part),
            }
        }

        /// Runs a part that needs no packet. `part` must be a constant.
        #[inline(always)]
        pub fn run_alone<T: Tables>(tables: &T, scratch: &mut Scratch, part: Part) -> bool {
            match part {
                $(Part::$lone => $run_lone(tables, scratch),)*
                $(Part::$part)|* => false,
            }
        }
    };
}

parts! {
    alone {
        /// Gives a later fragment that goes out its ports.
        Recall => fragments::recall;
        /// Writes the entries of a flow that begins.
        Prepare => begin::prepare;
        /// Takes the reply tuple of a flow that begins.
        Reserve => ports::reserve;
        /// Takes a reply tuple for a flow of this host that begins.
        ReserveOwn => ports::own;
        /// Makes the entries of a flow that begins.
        Stand => begin::stand;
        /// Finds the flow of a packet of this host, or its service.
        HostSeek => host::seek;
    }
    /// Reads the headers.
    Parse => parse;
    /// ICMP, in either direction.
    Icmp => icmp::part;
    /// Fragments that come in.
    Place => fragments::place;
    /// Finds the flow of a packet that comes in, or what becomes of it without one.
    Seek => seek::ingress;
    /// Makes anew what was displaced of a transient flow.
    Mend => tiers::mend;
    /// Finds the flow of a packet that goes out.
    SeekOut => seek::egress;
    /// Refuses a packet.
    Refuse => reject::part;
    /// Chooses service and backend for a packet that begins a flow.
    First => first::part;
    /// Gives a masqueraded flow its source.
    Masquerade => ports::masquerade;
    /// Marks the entry of a packet that is of a flow.
    Touch => flows::touch_part;
    /// Finds the way of a packet that goes past the stack.
    Bypass => ingress::bypass;
    /// Makes the packet carry its new addresses and ports.
    Rewrite => rewrite::part;
    /// Chooses a backend for a packet of this host.
    HostFirst => host::first;
    /// Finds the way of a packet of this host to its backend.
    HostExit => host::exit;
    /// Finds the interface at which an answer to this host is shown.
    Delivery => host::delivery;
}

/// Ends the path.
#[inline(always)]
pub(super) const fn end(scratch: &mut Scratch, verdict: Verdict) -> bool {
    scratch.verdict = verdict;
    true
}

#[inline(always)]
fn parse<P: Packet, T: Tables>(packet: &mut P, _: &T, scratch: &mut Scratch) -> bool {
    match wire::parse(packet, &mut scratch.headers) {
        Ok(()) => false,
        Err(reason) => end(scratch, Verdict::Pass(reason)),
    }
}
