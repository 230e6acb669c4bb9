//! One variant of `bench packet`: the program, the case, the kind of packet, and the function that measures it once.

use std::fmt;

use anyhow::Result;
use lb_common::addr;

use crate::topology::Family;
use crate::traffic::Protocol;

/// Family and transport of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) family: Family,
    pub(super) transport: Protocol,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [
        Self { family: Family::V4, transport: Protocol::Tcp },
        Self { family: Family::V4, transport: Protocol::Udp },
        Self { family: Family::V6, transport: Protocol::Tcp },
        Self { family: Family::V6, transport: Protocol::Udp },
    ];

    /// For people.
    pub(super) const fn words(self) -> [&'static str; 2] {
        let family = match self.family {
            Family::V4 => "v4",
            Family::V6 => "v6",
        };
        let transport = match self.transport {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        [family, transport]
    }

    /// The number of its transport.
    pub(super) const fn protocol(self) -> addr::Protocol {
        match self.transport {
            Protocol::Tcp => addr::Protocol::TCP,
            Protocol::Udp => addr::Protocol::UDP,
        }
    }
}

/// The treatment of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// The cost of the measurement, or of reading headers: no table decides.
    Bare,
    /// One look-up that finds nothing.
    NotOurs,
    /// Every packet begins a flow.
    First,
    /// Every packet follows a flow that is there.
    Established,
    /// The same of a client outside that a remote backend serves: what leaves the node gets its address as source, what
    /// comes back the client's as destination.
    Remote,
    /// Nobody serves the frontend: the packet becomes its own rejection. One at a time.
    Reject,
    /// XDP sends it out itself, to a remote backend. One at a time.
    Sent,
    /// tc sends it on past the stack (ADR 0021). One at a time.
    ShortCut,
    /// The case that a short cut is compared with: the same packet, left to the stack. One at a time.
    Alone,
}

impl Case {
    /// Whether packets are measured one at a time, and beside an empty program that is measured alike.
    pub(super) const fn is_alone(self) -> bool {
        matches!(self, Self::Reject | Self::Sent | Self::ShortCut | Self::Alone)
    }

    /// For people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::NotOurs => "not ours",
            Self::First => "first",
            Self::Established => "established",
            Self::Remote => "established, remote backend",
            Self::Reject => "reject, one at a time",
            Self::Sent => "sent out, one at a time",
            Self::ShortCut => "short cut, one at a time",
            Self::Alone => "established, one at a time",
        }
    }
}

/// Name of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) program: &'static str,
    /// XDP, else tc.
    pub(super) xdp: bool,
    pub(super) case: Case,
    /// Flows that the packets belong to in turn; 0 where there are none.
    pub(super) flows: usize,
    pub(super) kind: Kind,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, case, flows, kind, .. } = self;
        write!(f, "{program} {} {}, {flows} flows", case.name(), kind.words().join(" "))
    }
}

/// Something that is measured.
pub(super) struct Variant<'a> {
    pub(super) label: Label,
    /// Bytes of a packet.
    pub(super) bytes: usize,
    run: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Variant<'a> {
    /// `run` warms up, measures, proves that the work was done, and returns nanoseconds per packet.
    pub(super) fn new(label: Label, bytes: usize, run: impl FnMut() -> Result<f64> + 'a) -> Self {
        Self { label, bytes, run: Box::new(run) }
    }

    /// Measures once.
    pub(super) fn run(&mut self) -> Result<f64> {
        (self.run)()
    }
}
