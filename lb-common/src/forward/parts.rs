//! The whole path in parts.
//!
//! In the kernel each part is a function of its own that the verifier walks once, by itself: neither the branches of
//! the parts nor their stacks add up. A part finds its input in the working memory and leaves its result there.

use crate::event::{DropReason, Verdict};
use crate::forward::begin::ports::{self, masquerade};
use crate::forward::begin::{first, mend};
use crate::forward::exit::{self, rewrite};
use crate::forward::life::flows;
use crate::forward::rare::{host, icmp, reject};
use crate::forward::seek::{self, shape::Any};
use crate::forward::{PortSearch, Scratch, Step, begin, fragments};
use crate::packet::Packet;
use crate::tables::Tables;
use crate::wire;

/// Runs the parts for one kind of packet: in user space in place, in the kernel as functions.
pub trait Parts<T: Tables>: Packet + Sized {
    /// Runs one part. An error ends the path.
    #[inline(always)]
    fn part(&mut self, tables: &T, scratch: &mut Scratch, part: Part) -> Step<()> {
        run(self, tables, scratch, part)
    }
}

/// The result of a part. Parts without a result never end the path.
trait PartResult {
    fn step(self) -> Step<()>;
}

impl PartResult for Step<()> {
    #[inline(always)]
    fn step(self) -> Step<()> {
        self
    }
}

impl PartResult for () {
    #[inline(always)]
    fn step(self) -> Step<()> {
        Ok(())
    }
}

/// Declares the parts, each with the function that implements it.
macro_rules! parts {
    (
        alone { $($(#[$lone_doc:meta])* $lone:ident => $run_lone:path;)* }
        $($(#[$doc:meta])* $part:ident => $run:path;)*
    ) => {
        /// A part of the whole path; the macro names its function.
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
        ) -> Step<()> {
            match part {
                $(Part::$part => $run(packet, tables, scratch).step(),)*
                $(Part::$lone)|* => run_alone(tables, scratch, part),
            }
        }

        /// Runs a part that needs no packet. `part` must be a constant.
        #[inline(always)]
        pub fn run_alone<T: Tables>(tables: &T, scratch: &mut Scratch, part: Part) -> Step<()> {
            match part {
                $(Part::$lone => $run_lone(tables, scratch).step(),)*
                $(Part::$part)|* => Ok(()),
            }
        }
    };
}

parts! {
    alone {
        /// Gives a later fragment that goes out the ports of its datagram. A first one ends the record of an earlier
        /// datagram.
        Recall => fragments::recall;
        /// Builds the forward and the reply entry of a new flow in working memory; the tables have neither yet.
        Prepare => begin::prepare;
        /// Writes the entries of a new flow to the tables, the forward one last.
        Commit => begin::commit;
    }
    /// Reads the headers of the packet into the working memory.
    Parse => parse;
    /// Handles ICMP messages, in either direction.
    Icmp => icmp::part;
    /// Gives a later fragment that comes in the ports of its datagram, or holds it.
    AssignPorts => fragments::assign_ports;
    /// Finds the flow of a packet that comes in, or decides what becomes of the packet without one.
    Seek => seek;
    /// Restores the displaced entries of a transient flow.
    Mend => mend::mend;
    /// Finds the flow of a packet that goes out.
    SeekOut => seek_out;
    /// Ends the path of a refused packet: passes, drops or rejects it.
    Refuse => reject::part;
    /// Chooses the backend of a packet that begins a flow, and the properties of the flow.
    First => first::part;
    /// Gives a masqueraded flow its source.
    Masquerade => masquerade::masquerade;
    /// Marks the entry that a packet follows as seen.
    Touch => flows::touch_part;
    /// Chooses the exit of a packet that may have another one than the stack.
    Exit => exit::choose;
    /// Makes the packet carry its new addresses and ports.
    Rewrite => rewrite::part;
    /// Takes the reply tuple of a flow that begins.
    Reserve => ports::reserve;
    /// Takes a reply tuple for a flow of this host that begins.
    ReserveOwn => ports::own;
    /// Finds the flow of a packet of this host, or its service.
    HostSeek => host::seek;
    /// Chooses a backend for a packet of this host.
    HostFirst => host::first;
    /// Finds the route of a packet of this host to its backend.
    HostExit => host::exit;
    /// Finds the interface at which the stack receives a reply to this host.
    Delivery => host::delivery;
}

/// Stores the result of a part for the function around it in the kernel, and returns the value of that function: not 0
/// where the part ends the path, with its verdict in the working memory.
#[inline(always)]
pub const fn store_result(step: Step<()>, scratch: &mut Scratch) -> u32 {
    match step {
        Ok(()) => 0,
        Err(verdict) => {
            scratch.verdict = verdict;
            1
        }
    }
}

/// Loads the result of such a kernel function as a step again.
#[inline(always)]
pub const fn load_result(ended: u32, scratch: &Scratch) -> Step<()> {
    if ended == 0 { Ok(()) } else { Err(scratch.verdict) }
}

/// Marks the entry that a packet follows, where there is something to mark.
#[inline(always)]
pub(super) fn touch<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
) -> Step<()> {
    if flows::must_touch(packet, tables, &scratch.headers.view, &scratch.found.flow) {
        packet.part(tables, scratch, Part::Touch)?;
    }
    Ok(())
}

/// Runs a part that looks for a source port, try by try.
///
/// VERIFIER: each try is a call of its own. In a loop within the part the verifier would walk all of them.
#[inline(always)]
pub(super) fn tries<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    part: Part,
) -> Step<()> {
    scratch.search = PortSearch::default();
    // VERIFIER: an inclusive range would triple the instructions that the verifier walks.
    for _ in 0..PortSearch::CALLS {
        // A try that fails for another reason than a taken port does not set the flag: its verdict is final.
        scratch.search.goes_on = false;
        let tried = packet.part(tables, scratch, part);
        if tried.is_ok() || !scratch.search.goes_on {
            return tried;
        }
    }
    Err(Verdict::Drop(DropReason::PortsExhausted))
}

#[inline(always)]
fn parse<P: Packet, T: Tables>(
    packet: &mut P,
    _: &T,
    Scratch { headers, .. }: &mut Scratch,
) -> Step<()> {
    wire::parse(packet, headers).map_err(Verdict::Pass)
}

#[inline(always)]
fn seek<P: Packet, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> Step<()> {
    scratch.next = seek::ingress(packet, tables, &mut Any, scratch)?;
    Ok(())
}

#[inline(always)]
fn seek_out<P: Packet, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> Step<()> {
    scratch.next = seek::egress(packet, tables, &mut Any, scratch)?;
    Ok(())
}

#[cfg(test)]
mod tests;
