//! One variant of `bench packet`: the program, the case, the kind of packet, and the function that measures it once.

use std::fmt;

use anyhow::Result;
use lb_common::addr;
use lb_tests::topology::Family;
use lb_tests::traffic::Protocol;

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

    /// Family and transport as words of a table.
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

    /// The IP protocol number of the transport.
    pub(super) const fn protocol(self) -> addr::Protocol {
        match self.transport {
            Protocol::Tcp => addr::Protocol::TCP,
            Protocol::Udp => addr::Protocol::UDP,
        }
    }
}

/// The case that the packets of a variant represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// The fixed cost of the measurement, or of parsing headers: no map is used.
    Bare,
    /// One lookup that finds nothing.
    NotOurs,
    /// Every packet begins a flow.
    First,
    /// Every packet belongs to an established flow.
    Established,
    /// Every packet belongs to an established flow between an external client and a remote backend: the source of
    /// egress packets becomes the node's address, the destination of ingress packets becomes the client's.
    Remote,
    /// The frontend has no backend: the packet becomes its own rejection. Measured one packet at a time.
    Reject,
    /// XDP redirects the packet towards a remote backend. Measured one packet at a time.
    Redirected,
    /// tc redirects the packet past the stack (ADR 0021). Measured one packet at a time.
    Bypass,
    /// The case that a stack bypass is compared with: the same packet, left to the stack. Measured one packet at a
    /// time.
    Alone,
}

impl Case {
    /// Whether packets are measured one at a time, and compared with an empty program that is measured in the same way.
    pub(super) const fn is_alone(self) -> bool {
        matches!(self, Self::Reject | Self::Redirected | Self::Bypass | Self::Alone)
    }

    /// The name in results and tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::NotOurs => "not ours",
            Self::First => "first",
            Self::Established => "established",
            Self::Remote => "established, remote backend",
            Self::Reject => "reject, one at a time",
            Self::Redirected => "redirected, one at a time",
            Self::Bypass => "bypass, one at a time",
            Self::Alone => "established, one at a time",
        }
    }
}

/// The labels of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) program: &'static str,
    /// Whether the program runs at XDP; otherwise at tc.
    pub(super) xdp: bool,
    pub(super) case: Case,
    /// The number of flows that the packets belong to in turn; 0 if the case has no flows.
    pub(super) flows: usize,
    pub(super) kind: Kind,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, case, flows, kind, .. } = self;
        write!(f, "{program} {} {}, {flows} flows", case.name(), kind.words().join(" "))
    }
}

/// One thing that is measured.
pub(super) struct Variant<'a> {
    pub(super) label: Label,
    /// The length of a packet, in bytes.
    pub(super) bytes: usize,
    run: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Variant<'a> {
    /// Makes a variant. `run` warms up, measures, verifies that the work was done, and returns nanoseconds per packet.
    pub(super) fn new(label: Label, bytes: usize, run: impl FnMut() -> Result<f64> + 'a) -> Self {
        Self { label, bytes, run: Box::new(run) }
    }

    /// Runs one measurement; returns nanoseconds per packet.
    pub(super) fn run(&mut self) -> Result<f64> {
        (self.run)()
    }
}
