//! How a packet ended, and what happened on the way: the names that counters, metrics, tests and `explain` share.

/// Defines a fieldless enum with `ALL`, `name` (the metric label) and a meaning (the help text).
macro_rules! names {
    ($(#[$doc:meta])* $type:ident { $($variant:ident = $name:literal, $meaning:literal;)* }) => {
        $(#[$doc])*
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $(#[doc = $meaning] $variant,)*
        }

        impl $type {
            /// Every value, in counter order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in metrics and in `explain`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it means, for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

names! {
    /// Why a packet was left as it is.
    PassReason {
        NotOurs = "not_ours", "no frontend and no flow: the stack's";
        NotIp = "not_ip", "neither IPv4 nor IPv6";
        OtherProtocol = "other_protocol", "an IP protocol that Services cannot name";
        Malformed = "malformed", "a header is cut short or contradicts itself: the stack judges it";
        UnknownFragment = "unknown_fragment", "a later fragment whose first one was not seen";
        Martian = "martian", "a source that nobody can answer, or that is the destination: the stack judges it";
        Leaving = "leaving", "the service is gone and the packet begins no known flow";
        NotReady = "not_ready", "the agent has not written the settings yet";
        Unchanged = "unchanged", "a flow whose packets need no change here";
        LeftToTc = "left_to_tc", "XDP takes whole TCP and UDP packets that go on; tc does the rest";
        PartialChecksum = "partial_checksum", "XDP: a device is still to complete its checksum, so it seems; tc can tell";
        Accelerated = "accelerated", "tc: what XDP translated, told by its flow, where the backend is a frontend itself";
    }
}

names! {
    /// What was rewritten in a packet that goes on.
    Translation {
        NewFlow = "new_flow", "first packet to a frontend: the destination became a backend";
        Forward = "forward", "later packet to a frontend";
        Reply = "reply", "answer of a backend: the source became the frontend";
        Masquerade = "masquerade", "left the node for a remote backend under our address";
        Unmasquerade = "unmasquerade", "answer of a remote backend: the destination became the client";
        IcmpError = "icmp_error", "an ICMP error about a flow, translated with the packet it quotes";
    }
}

names! {
    /// Why a packet was turned round on its device.
    Turn {
        Hairpin = "hairpin", "a pod reaches itself through a service";
        Echo = "echo", "ICMP echo to a ClusterIP, answered";
        NoBackend = "no_backend", "rejected: the service has no usable endpoint";
        Fragment = "fragment", "a fragment that was held, sent in again behind the first of its datagram";
        UnknownPort = "unknown_port", "rejected: the ClusterIP has no such port";
        Host = "host", "a process of this host that no socket hook serves: its question, or the answer to it";
    }
}

names! {
    /// What went past the stack.
    Sent {
        Forward = "to_backend", "to a backend, past the stack";
        Reply = "to_client", "answer of a backend, past the stack";
    }
}

names! {
    /// Why a packet was dropped.
    DropReason {
        NoLocalBackend = "no_local_backend", "traffic policy Local without an endpoint on this node";
        SourceNotAllowed = "source_not_allowed", "not in loadBalancerSourceRanges";
        UnallocatedAddress = "unallocated_address", "an address of a service range that no Service has";
        FlowTableFull = "flow_table_full", "no room for a new flow in the table or in memory: an event tells which";
        PortsExhausted = "ports_exhausted", "no free source port towards this backend";
        NoSourceAddress = "no_source_address", "the leaving device has no address of the family";
        BadTable = "bad_table", "a selection table names a backend that is not there";
        RewriteFailed = "rewrite_failed", "the kernel refused to change the packet";
        RejectLimited = "reject_limited", "a rejection beyond the rate limit";
        NotRejected = "not_rejected", "refused, but nobody is told: a RST, a later fragment, more extension headers than an error can quote";
        FragmentHeld = "fragment_held", "a fragment ahead of the first of its datagram, kept to be sent in again behind it";
        FragmentLost = "fragment_lost", "a fragment that was held and had to make room for others";
        SctpChecksum = "sctp_checksum", "an SCTP packet in pieces whose port would change: its checksum covers all of them";
        IcmpRedirect = "icmp_redirect", "an ICMP redirect that would tell a client to go around us";
    }
}

names! {
    /// Things that happen on the way of a packet and are counted beside its verdict.
    Event {
        PortShifted = "port_shifted", "the source port was changed, the tuple was taken";
        PortTaken = "port_taken", "a source port that was tried is another flow's; up to 16 are tried for a flow";
        PortsScarce = "ports_scarce", "a source port was found only after half of all tries: they run out towards a backend";
        AffinityFull = "affinity_full", "no room to remember a client's backend";
        FlowRenewed = "flow_renewed", "a flow whose backend left picked again";
        FlowReused = "flow_reused", "a SYN reused the tuple of an older connection";
        AffinityHit = "affinity_hit", "a new flow followed its client's affinity";
        SocketTranslated = "socket_translated", "a socket was sent to a backend";
        SocketRefused = "socket_refused", "a socket was refused: no usable endpoint";
        SocketRestored = "socket_restored", "a socket was shown the frontend it asked for";
        SocketNoMemory = "socket_no_memory", "no working memory for a socket call: it failed with ENOBUFS, or was shown no frontend";
        FragmentsReleased = "fragments_released", "the first fragment came after others, which are sent in again";
        KeptHopLimit = "kept_hop_limit", "a packet did not go past the stack: its hop limit ends here, as the stack will say";
        KeptTooBig = "kept_too_big", "a packet did not go past the stack: larger than the MTU, as the stack will say";
        KeptNeighbour = "kept_neighbour", "a packet did not go past the stack, which must ask who the next hop is";
        KeptRoute = "kept_route", "a packet did not go past the stack: no route, or none that goes without it";
        KeptDevice = "kept_device", "a packet did not go past the stack: its device takes none that way";
        KeptLink = "kept_link", "a packet did not go past the stack: tagged, or sent to another address on its link";
        FragmentTableFull = "fragment_table_full", "no room to remember the ports of a packet in pieces";
        FlowNoMemory = "flow_no_memory", "the kernel had no memory for half of a flow, though the table has room";
        SourceKept = "source_kept", "masqueraded under its device's first address, though that has several: its route named none that is known, or encapsulates, or forwarding is off for the device, or Linux is older than 6.7";
    }
}

/// How a packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Untouched, the next program or the stack goes on with it.
    Pass(PassReason),
    /// Rewritten, the next program or the stack goes on with it.
    Translated(Translation),
    /// Out again by the device it came from.
    TurnedRound(Turn),
    /// Rewritten, and out by a device without the stack.
    Sent(Sent),
    /// Untouched and gone.
    Drop(DropReason),
}

impl Verdict {
    /// Verdicts there are: the width of one hook's counters.
    pub const COUNT: u32 = (PassReason::ALL.len()
        + Translation::ALL.len()
        + Turn::ALL.len()
        + Sent::ALL.len()
        + DropReason::ALL.len()) as u32;

    /// Position among the counters of a hook.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        const TRANSLATED: u32 = PassReason::ALL.len() as u32;
        const TURNED: u32 = TRANSLATED + Translation::ALL.len() as u32;
        const SENT: u32 = TURNED + Turn::ALL.len() as u32;
        const DROPPED: u32 = SENT + Sent::ALL.len() as u32;
        match self {
            Self::Pass(reason) => reason as u32,
            Self::Translated(what) => TRANSLATED + what as u32,
            Self::TurnedRound(why) => TURNED + why as u32,
            Self::Sent(what) => SENT + what as u32,
            Self::Drop(reason) => DROPPED + reason as u32,
        }
    }

    /// Every verdict, in the order of [`Verdict::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        let pass = PassReason::ALL.iter().map(|reason| Self::Pass(*reason));
        let translated = Translation::ALL.iter().map(|what| Self::Translated(*what));
        let turned = Turn::ALL.iter().map(|why| Self::TurnedRound(*why));
        let sent = Sent::ALL.iter().map(|what| Self::Sent(*what));
        let dropped = DropReason::ALL.iter().map(|reason| Self::Drop(*reason));
        pass.chain(translated).chain(turned).chain(sent).chain(dropped)
    }

    /// The class: `pass`, `translated`, `turned_round`, `sent`, `drop`.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Pass(_) => "pass",
            Self::Translated(_) => "translated",
            Self::TurnedRound(_) => "turned_round",
            Self::Sent(_) => "sent",
            Self::Drop(_) => "drop",
        }
    }

    /// The name within the class.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass(reason) => reason.name(),
            Self::Translated(what) => what.name(),
            Self::TurnedRound(why) => why.name(),
            Self::Sent(what) => what.name(),
            Self::Drop(reason) => reason.name(),
        }
    }
}

names! {
    /// Where a program sits: the first coordinate of the counters.
    Hook {
        PodIngress = "pod_ingress", "tc, packets from a pod";
        PodEgress = "pod_egress", "tc, packets to a pod";
        EdgeIngress = "edge_ingress", "tc, packets from outside";
        EdgeEgress = "edge_egress", "tc, packets to outside";
        EdgeXdp = "edge_xdp", "XDP, packets from outside";
    }
}

/// Counters in `COUNTERS`: every verdict at every hook, then the events.
pub const COUNTERS: u32 = Hook::ALL.len() as u32 * Verdict::COUNT + Event::ALL.len() as u32;

/// Position in `COUNTERS` of a verdict at a hook.
#[inline(always)]
pub const fn verdict_counter(hook: Hook, verdict: Verdict) -> u32 {
    hook as u32 * Verdict::COUNT + verdict.index()
}

/// The verdict and the hook at a position in `COUNTERS`: [`verdict_counter`] the other way.
pub fn counted(counter: u32) -> Option<(Hook, Verdict)> {
    let hook = Hook::ALL.get((counter / Verdict::COUNT) as usize)?;
    Some((*hook, Verdict::all().nth((counter % Verdict::COUNT) as usize)?))
}

/// Position in `COUNTERS` of an event.
#[inline(always)]
pub const fn event_counter(event: Event) -> u32 {
    Hook::ALL.len() as u32 * Verdict::COUNT + event as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_positions_are_dense_and_distinct() {
        let verdicts = Hook::ALL.iter().flat_map(|hook| Verdict::all().map(move |v| (*hook, v)));
        let mut expected = 0;
        for (hook, verdict) in verdicts {
            assert_eq!(verdict_counter(hook, verdict), expected);
            assert_eq!(counted(expected), Some((hook, verdict)));
            expected += 1;
        }
        for event in Event::ALL {
            assert_eq!(event_counter(*event), expected);
            assert_eq!(counted(expected), None);
            expected += 1;
        }
        assert_eq!(expected, COUNTERS);
    }
}
