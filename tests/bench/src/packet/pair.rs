//! The pairs of endpoints between which the packets of a ring alternate, and the verdict of these packets at each hook.

use lb_common::addr::Endpoint;
use lb_common::event::{Hook, Translation};
use lb_common::fake::at;
use lb_common::flow::{Kind as FlowKind, Side};
use lb_tests::topology::Family;

use super::ring::{self, MANY};
use super::variant::{Case, Kind};

/// The kind of flows that a ring consists of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Clients are local pods and destinations are ClusterIPs.
    Cluster,
    /// Clients are external and destinations are `NodePorts` with local backends.
    Node,
    /// Clients are external and backends are on other nodes: the ring measures the packets that leave for these
    /// backends and the packets that come back.
    Remote,
}

/// The two frontends, or the two remote backends, between which a ring alternates.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) ends: [Endpoint; 2],
    pub(super) of: Of,
}

impl Pair {
    fn cluster(family: Family) -> Self {
        let ends = match family {
            Family::V4 => ["10.96.0.10:80", "10.96.0.11:81"],
            Family::V6 => ["[fd00:96::10]:80", "[fd00:96::11]:81"],
        };
        Self { ends: ends.map(at), of: Of::Cluster }
    }

    fn node(family: Family) -> Self {
        let ends = match family {
            Family::V4 => ["192.168.0.10:30080", "192.168.0.10:30081"],
            Family::V6 => ["[fd00:c0::10]:30080", "[fd00:c0::10]:30081"],
        };
        Self { ends: ends.map(at), of: Of::Node }
    }

    /// A pair of backends on other nodes.
    fn remote(family: Family) -> Self {
        let ends = match family {
            Family::V4 => ["10.2.0.7:8080", "10.2.0.8:8081"],
            Family::V6 => ["[fd00:2::7]:8080", "[fd00:2::8]:8081"],
        };
        Self { ends: ends.map(at), of: Of::Remote }
    }

    /// All pairs that are measured with this number of flows.
    pub(super) fn all(kind: Kind, flows: usize) -> Vec<Self> {
        let mut all = vec![Self::cluster(kind.family), Self::node(kind.family)];
        if flows != MANY {
            all.push(Self::remote(kind.family));
        }
        all
    }

    /// The hooks at which the packets of the ring are measured.
    pub(super) const fn hooks(self) -> &'static [Hook] {
        match self.of {
            Of::Cluster => &[Hook::PodIngress, Hook::PodEgress],
            Of::Node | Of::Remote => {
                &[Hook::ExternalIngress, Hook::ExternalXdp, Hook::ExternalEgress]
            }
        }
    }

    pub(super) const fn case(self) -> Case {
        match self.of {
            Of::Cluster | Of::Node => Case::Established,
            Of::Remote => Case::Remote,
        }
    }

    /// The kind of flow entry for packets in this direction, and the translation that they get.
    pub(super) fn translation(self, side: Side) -> (FlowKind, Translation) {
        match (self.of == Of::Remote, side == Side::EGRESS) {
            (false, false) => (FlowKind::FORWARD, Translation::Forward),
            (false, true) => (FlowKind::REPLY, Translation::Reply),
            (true, true) => (FlowKind::MASQUERADE, Translation::Masquerade),
            (true, false) => (FlowKind::UNMASQUERADE, Translation::Unmasquerade),
        }
    }

    /// Source and destination of the ring's packet at a position, in one direction. Packets of clients to remote
    /// backends are egress packets.
    pub(super) fn tuple(
        self,
        position: usize,
        kind: Kind,
        flows: usize,
        side: Side,
    ) -> [Endpoint; 2] {
        let mut ends = [ring::client(position, flows, kind.family), self.at(position)];
        if self.is_back(side) {
            ends.reverse();
        }
        ends
    }

    /// Whether packets of this direction go to the client.
    pub(super) fn is_back(self, side: Side) -> bool {
        (side == Side::EGRESS) != (self.of == Of::Remote)
    }

    pub(super) const fn at(self, position: usize) -> Endpoint {
        let [even, odd] = self.ends;
        if position.is_multiple_of(2) { even } else { odd }
    }
}
