//! The modes that `bench traffic` measures: the proxy, the routes between clients and servers, and the operations.

use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::topology::Family;

use super::generator::Operation;

/// A mode of serving Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyKind {
    /// No proxy: the client addresses the backend itself, over the same hops.
    Plain,
    /// kube-proxy in mode nftables, with its default settings.
    Nftables,
    /// kube-proxy in mode iptables, with its default settings.
    Iptables,
    /// Our agent with its default settings.
    Ours,
    /// Our agent, with every packet through the stack.
    OursStack,
    /// Our agent, with socket hooks for pods as well.
    OursSockets,
    /// The smallest tc programs for one `ClusterIP`, which bypass the stack of the client's node.
    Minimal,
    /// The smallest tc programs for one `ClusterIP`, with every packet through the stack.
    MinimalStack,
    /// No proxy, and all members send complete checksums as over a physical wire: the reference of
    /// [`ProxyKind::OursXdp`].
    PlainWhole,
    /// Our agent with XDP on the external interfaces. XDP leaves packets with a partial checksum to tc, so all members
    /// send complete checksums.
    OursXdp,
}

/// The proxy of a mode on a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Agent {
    None,
    /// The real kube-proxy in one of its modes.
    KubeProxy(Mode),
    /// Our agent, with these lines in its configuration.
    Ours(&'static str),
    /// Programs that serve one `ClusterIP` and nothing else.
    Minimal {
        /// Whether the stack forwards the packets.
        through_stack: bool,
    },
}

impl ProxyKind {
    /// All modes, in the order of a turn.
    pub(super) const ALL: [Self; 10] = [
        Self::Plain,
        Self::Nftables,
        Self::Iptables,
        Self::Ours,
        Self::OursStack,
        Self::OursSockets,
        Self::Minimal,
        Self::MinimalStack,
        Self::PlainWhole,
        Self::OursXdp,
    ];

    /// The name in results.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Nftables => "kube-proxy-nftables",
            Self::Iptables => "kube-proxy-iptables",
            Self::Ours => "ours",
            Self::OursStack => "ours-stack",
            Self::OursSockets => "ours-sockets",
            Self::Minimal => "minimal",
            Self::MinimalStack => "minimal-stack",
            Self::PlainWhole => "plain-whole",
            Self::OursXdp => "ours-xdp",
        }
    }

    pub(super) const fn agent(self) -> Agent {
        match self {
            Self::Plain | Self::PlainWhole => Agent::None,
            Self::Nftables => Agent::KubeProxy(Mode::Nftables),
            Self::Iptables => Agent::KubeProxy(Mode::Iptables),
            Self::Ours => Agent::Ours(""),
            Self::OursStack => Agent::Ours("bypass: off\n"),
            Self::OursSockets => Agent::Ours("socketLB: all\n"),
            Self::OursXdp => Agent::Ours("acceleration: native\n"),
            Self::Minimal => Agent::Minimal { through_stack: false },
            Self::MinimalStack => Agent::Minimal { through_stack: true },
        }
    }

    /// Whether figures of this mode are judged in comparisons.
    pub(super) const fn is_ours(self) -> bool {
        matches!(self.agent(), Agent::Ours(_))
    }

    /// Whether all members send complete checksums.
    pub(super) const fn has_whole_checksums(self) -> bool {
        matches!(self, Self::PlainWhole | Self::OursXdp)
    }

    /// The mode without Services that this one is compared with.
    pub(super) const fn plain(self) -> Self {
        if self.has_whole_checksums() { Self::PlainWhole } else { Self::Plain }
    }

    /// The largest number of services at which this mode is measured. kube-proxy needs longer to program more than the
    /// rest of the run takes; of our modes, the default settings alone show the effect of the number.
    pub(super) const fn most_services(self) -> u32 {
        match self {
            Self::Plain | Self::Ours | Self::Minimal => u32::MAX,
            Self::Nftables
            | Self::Iptables
            | Self::OursStack
            | Self::OursSockets
            | Self::MinimalStack
            | Self::PlainWhole
            | Self::OursXdp => 10_000,
        }
    }

    /// The reason why larger numbers are not measured.
    pub(super) const fn why_no_more(self) -> &'static str {
        match self.agent() {
            Agent::KubeProxy(_) => "programming takes longer than the rest of the run",
            Agent::None | Agent::Ours(_) | Agent::Minimal { .. } => {
                "to save time; `ours` with default settings shows the effect of the number"
            }
        }
    }

    /// Whether this mode differs from the others on a route.
    pub(super) const fn serves(self, route: Route) -> bool {
        match (self, route) {
            (
                Self::OursSockets | Self::Minimal | Self::MinimalStack,
                Route::PortNear | Route::PortFar,
            )
            | (Self::PlainWhole | Self::OursXdp, Route::PodFar) => false,
            (_, Route::Loopback) => matches!(self, Self::Plain),
            (_, Route::PodFar | Route::PortNear | Route::PortFar) => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// A pod uses a `ClusterIP` whose backend is on another node.
    PodFar,
    /// An external client uses a `NodePort` whose backend is on that node.
    PortNear,
    /// An external client uses a `NodePort` whose backend is on another node.
    PortFar,
    /// A backend connects to itself: the limit of the generator without a network.
    Loopback,
}

impl Route {
    pub(super) const ALL: [Self; 4] = [Self::PodFar, Self::PortNear, Self::PortFar, Self::Loopback];

    /// The name in results.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PodFar => "pod-far",
            Self::PortNear => "port-near",
            Self::PortFar => "port-far",
            Self::Loopback => "loopback",
        }
    }
}

/// One measurement that every mode takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) route: Route,
    pub(super) operation: Operation,
    pub(super) family: Family,
}

/// The measurements at a number of services: all of them at the first number, at the others those that the number may
/// affect.
pub(super) fn questions(is_first: bool) -> Vec<Question> {
    let mut questions = Vec::new();
    for family in Family::ALL {
        for route in Route::ALL {
            for operation in Operation::ALL {
                if is_asked(is_first, family, route, operation) {
                    questions.push(Question { route, operation, family });
                }
            }
        }
    }
    questions
}

const fn is_asked(is_first: bool, family: Family, route: Route, operation: Operation) -> bool {
    let is_some = matches!(operation, Operation::Connect | Operation::Kept | Operation::Udp);
    match (is_first, family, route) {
        (true, Family::V4, _) => true,
        (true, Family::V6, Route::PodFar | Route::PortFar) => is_some,
        (false, Family::V4, Route::PodFar) => is_some || matches!(operation, Operation::Connect16),
        (false, Family::V4, Route::PortNear | Route::PortFar) => {
            matches!(operation, Operation::Connect | Operation::Connect16)
        }
        (true, Family::V6, Route::PortNear | Route::Loopback)
        | (false, Family::V4, Route::Loopback)
        | (false, Family::V6, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_but_the_plain_ones_is_beside_a_plain_one_on_each_of_its_routes() {
        for kind in ProxyKind::ALL {
            for route in Route::ALL.into_iter().filter(|route| kind.serves(*route)) {
                assert!(kind.plain().serves(route), "{kind:?} {route:?}");
            }
        }
    }

    #[test]
    fn a_number_of_services_is_asked_less_than_the_first() {
        let (all, some) = (questions(true), questions(false));
        assert!(some.iter().all(|question| all.contains(question)));
        assert_eq!((all.len(), some.len()), (4 * 6 + 2 * 3, 4 + 2 * 2));
    }
}
