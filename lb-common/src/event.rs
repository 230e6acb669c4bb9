//! Verdicts and events: the names that counters, metrics and tests share.

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

            /// The meaning, for people.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

names! {
    /// Why a packet was left as it is.
    PassReason {
        NotOurs = "not_ours", "matches no frontend and no flow: left to the stack";
        NotIp = "not_ip", "neither IPv4 nor IPv6";
        OtherProtocol = "other_protocol", "an IP protocol that Services cannot name";
        Malformed = "malformed", "truncated or inconsistent header: left to the stack";
        UnknownFragment = "unknown_fragment", "a later fragment whose first fragment was not seen, or went to no Service";
        Martian = "martian", "a source that cannot be answered, or that equals the destination: left to the stack";
        DrainingFrontend = "draining_frontend", "the frontend was removed and the packet has no flow";
        NotReady = "not_ready", "the agent has not written the settings yet, or not loaded the programs of the whole path";
        Unchanged = "unchanged", "a known flow whose packets need no change at this hook";
        LeftToTc = "left_to_tc", "XDP: handled by tc, because XDP serves only whole TCP and UDP packets that are forwarded";
        PartialChecksum = "partial_checksum", "XDP: the checksum may still be incomplete (offload): left to tc, where the kernel knows its state";
        OtherMachine = "other_machine", "the answer would come from this node, but the frame is for another machine";
        NoFlow = "no_flow", "a TCP segment without a flow that may not begin one: neither a SYN nor a plain acknowledgement";
        Accelerated = "accelerated", "tc: already translated by XDP, as its flow shows; its backend is a frontend as well";
        TakenOver = "take_over", "no flow during a take-over from kube-proxy: it may belong to a connection that netfilter still translates";
        Draining = "draining", "no flow while the data path drains: left to the successor";
    }
}

names! {
    /// The translation of a packet that goes on.
    Translation {
        NewFlow = "new_flow", "first packet to a frontend: the destination became a backend";
        Forward = "forward", "later packet to a frontend";
        Reply = "reply", "reply of a backend: the source became the frontend";
        Masquerade = "masquerade", "to a remote backend: the source became an address of the node";
        Unmasquerade = "unmasquerade", "reply of a remote backend: the destination became the client";
        IcmpError = "icmp_error", "an ICMP error about a flow, translated with the packet it quotes";
    }
}

names! {
    /// Why a packet was returned by its own interface.
    Return {
        Hairpin = "hairpin", "a pod that connects to itself through a service";
        Echo = "echo", "ICMP echo to a ClusterIP: answered";
        NoBackend = "no_backend", "rejected: the service has no usable endpoint";
        Fragment = "fragment", "a held fragment, sent in again after the first fragment of its datagram";
        UnknownPort = "unknown_port", "rejected: the ClusterIP has no such port";
        TooBig = "too_big", "a packet of a host process too large for the route to its backend: answered with the MTU";
    }
}

names! {
    /// The kind of redirected packet.
    Redirect {
        Forward = "to_backend", "to a backend, bypassing the stack";
        Reply = "to_client", "reply of a backend, bypassing the stack";
        FromHost = "host_to_backend", "packet of a host process to a frontend, redirected to a backend";
        ToHost = "backend_to_host", "into the stack: a reply to a host process, by the interface that the request left by; or a packet of a host process to a backend at an address of the node, by lo";
    }
}

names! {
    /// Why a packet was dropped.
    DropReason {
        NoLocalBackend = "no_local_backend", "traffic policy Local without an endpoint on this node";
        SourceNotAllowed = "source_not_allowed", "source outside loadBalancerSourceRanges";
        UnallocatedAddress = "unallocated_address", "an address of a service range that no Service has";
        FlowTableFull = "flow_table_full", "the kernel had no memory for a new flow";
        PortsExhausted = "ports_exhausted", "no source port towards this backend: protected flows have every port that was tried";
        NoSourceAddress = "no_source_address", "the outgoing interface has no address of the family";
        BadTable = "bad_table", "a selection table names a missing backend";
        RewriteFailed = "rewrite_failed", "the kernel refused to change the packet";
        RejectLimited = "reject_limited", "a rejection above the rate limit";
        NotRejected = "not_rejected", "refused without an answer: a RST, a later fragment, or more extension headers than an ICMP error can quote";
        FragmentHeld = "fragment_held", "a fragment that arrived before the first one of its datagram: held, and sent in again after it";
        FragmentLost = "fragment_lost", "a held fragment that was displaced by others";
        NoRoute = "no_route", "no route from this node to the chosen backend";
        SctpChecksum = "sctp_checksum", "a fragmented SCTP packet whose port would change: its checksum covers all fragments";
        IcmpRedirect = "icmp_redirect", "an ICMP redirect that would make a client bypass this node";
    }
}

names! {
    /// Things that happen on the way of a packet and are counted beside its verdict.
    Event {
        PortShifted = "port_shifted", "the source port was changed because the tuple was taken";
        PortTaken = "port_taken", "a tried source port belongs to another flow; up to 128 are tried for a flow";
        PortDisplaced = "port_displaced", "a new flow took the source port of a transient or expired flow, or of a UDP flow whose client has many of the ports";
        PortsScarce = "ports_scarce", "a free source port was found only after more than 8 tries: ports towards this backend run out";
        AffinityFull = "affinity_full", "no room to remember a client's backend";
        FlowRenewed = "flow_renewed", "a flow whose backend was removed chose a new one";
        FlowUnprotected = "flow_unprotected", "an answered flow found no room in the table of protected flows, or lost an entry before it was protected: it continues, but new flows may displace it";
        FlowReused = "flow_reused", "a SYN reused the tuple of an older connection";
        AffinityHit = "affinity_hit", "a new flow followed its client's affinity";
        SocketTranslated = "socket_translated", "a socket was connected to a backend";
        SocketRefused = "socket_refused", "a socket was refused: no usable endpoint";
        SocketRestored = "socket_restored", "getpeername(2) returned the frontend";
        SocketNoMemory = "socket_no_memory", "no memory for a socket call: the packets of its connection are translated";
        FragmentsReleased = "fragments_released", "the first fragment arrived after others, which are sent in again";
        KeptHopLimit = "kept_hop_limit", "no bypass: the hop limit expires here, and the stack sends the ICMP error";
        KeptTooBig = "kept_too_big", "no bypass: larger than the MTU, which the stack reports";
        KeptNeighbour = "kept_neighbour", "no bypass: the stack must resolve the next hop first";
        KeptRoute = "kept_route", "no bypass: no route, or one that needs the stack";
        KeptDevice = "kept_device", "no bypass: the outgoing interface does not support it";
        KeptLink = "kept_link", "no bypass: VLAN-tagged, or at XDP perhaps tagged, or addressed to another link-layer address";
        KeptSource = "kept_source", "no bypass: the route back to the source leaves by another interface";
        FragmentTableFull = "fragment_table_full", "no room to remember the ports of a fragmented packet";
        FlowNoMemory = "flow_no_memory", "the kernel had no memory for a flow entry, although the table has room";
        SourceKept = "source_kept", "masqueraded, or sent by a process, with the first address of an interface that has several: the route names no known one, or encapsulates, or forwarding is off for the interface, or the kernel is too old to name one (6.6)";
    }
}

impl Default for Verdict {
    fn default() -> Self {
        Self::Pass(PassReason::NotOurs)
    }
}

/// The end of a packet in the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The packet is unchanged; the next program or the stack continues with it.
    Pass(PassReason),
    /// The packet is rewritten; the next program or the stack continues with it.
    Translated(Translation),
    /// The packet leaves by the interface that it came from; one of a host process goes into the stack.
    Returned(Return),
    /// The packet is rewritten, and leaves by an interface without passing the stack, or enters the stack as if another
    /// interface had received it.
    Redirected(Redirect),
    /// The packet is discarded, unchanged.
    Drop(DropReason),
}

impl Verdict {
    /// Number of different verdicts: the width of one hook's counters.
    pub const COUNT: u32 = (PassReason::ALL.len()
        + Translation::ALL.len()
        + Return::ALL.len()
        + Redirect::ALL.len()
        + DropReason::ALL.len()) as u32;

    /// Position of the verdict among the counters of a hook.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        const TRANSLATED: u32 = PassReason::ALL.len() as u32;
        const RETURNED: u32 = TRANSLATED + Translation::ALL.len() as u32;
        const REDIRECTED: u32 = RETURNED + Return::ALL.len() as u32;
        const DROPPED: u32 = REDIRECTED + Redirect::ALL.len() as u32;
        match self {
            Self::Pass(reason) => reason as u32,
            Self::Translated(what) => TRANSLATED + what as u32,
            Self::Returned(why) => RETURNED + why as u32,
            Self::Redirected(what) => REDIRECTED + what as u32,
            Self::Drop(reason) => DROPPED + reason as u32,
        }
    }

    /// Every verdict, in the order of [`Verdict::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        let pass = PassReason::ALL.iter().map(|reason| Self::Pass(*reason));
        let translated = Translation::ALL.iter().map(|what| Self::Translated(*what));
        let returned = Return::ALL.iter().map(|why| Self::Returned(*why));
        let redirected = Redirect::ALL.iter().map(|what| Self::Redirected(*what));
        let dropped = DropReason::ALL.iter().map(|reason| Self::Drop(*reason));
        pass.chain(translated).chain(returned).chain(redirected).chain(dropped)
    }

    /// The class: `pass`, `translated`, `returned`, `redirected`, `drop`.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Pass(_) => "pass",
            Self::Translated(_) => "translated",
            Self::Returned(_) => "returned",
            Self::Redirected(_) => "redirected",
            Self::Drop(_) => "drop",
        }
    }

    /// The name within the class.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass(reason) => reason.name(),
            Self::Translated(what) => what.name(),
            Self::Returned(why) => why.name(),
            Self::Redirected(what) => what.name(),
            Self::Drop(reason) => reason.name(),
        }
    }
}

names! {
    /// Where a program sits: the first coordinate of the counters.
    Hook {
        PodIngress = "pod_ingress", "tc ingress of a pod interface: packets from a pod";
        PodEgress = "pod_egress", "tc egress of a pod interface: packets to a pod";
        ExternalIngress = "external_ingress", "tc ingress of an external interface: packets from outside";
        ExternalEgress = "external_egress", "tc egress of an external interface: packets to outside";
        ExternalXdp = "external_xdp", "XDP of an external interface: packets from outside";
        HostIngress = "host_ingress", "tc ingress of lo: replies of backends on this node to host processes";
        HostEgress = "host_egress", "tc egress of lo: packets of host processes to addresses of the node";
    }
}

/// Counters in `COUNTERS`: every verdict at every hook, then the events.
pub const COUNTERS: u32 = Hook::ALL.len() as u32 * Verdict::COUNT + Event::ALL.len() as u32;

/// Position in `COUNTERS` of a verdict at a hook.
#[inline(always)]
pub const fn verdict_counter(hook: Hook, verdict: Verdict) -> u32 {
    hook as u32 * Verdict::COUNT + verdict.index()
}

/// The hook and the verdict at a position in `COUNTERS`: the inverse of [`verdict_counter`].
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
