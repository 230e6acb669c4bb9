//! The outcome that the contract requires for each question: its tables 2.4 and 3.3, with our deliberate deviations
//! (ADR 0011).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;

use super::question::{Destination, Outcome, Policy, Question, Seen, Source, State};
use super::setup::{Detector, Proxy, Setup};
use crate::control_plane::kube_proxy::Mode;
use crate::topology::Shape;
use crate::topology::address::{self, Addresses, Family, Segment};
use crate::traffic::Protocol;

/// A backend: whether it is on `node-a`, and whether it has the addresses of its node (host network).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Backend {
    is_local: bool,
    is_host: bool,
}

/// The endpoints that a question may reach, or the reason why there is none (contract 2.4).
enum Reach {
    Backends(Vec<Backend>),
    Drop,
    Reject,
}

/// One cell of contract 3.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    is_local_set: bool,
    masquerades: bool,
}

/// The outcome that a question must have in a world.
pub fn expected(setup: &Setup, question: &Question) -> Result<Outcome> {
    let source = own_address(question.source, question.family)?;
    if question.destination == Destination::ProxiedVip {
        return Ok([Seen::Answer("client".to_owned(), source)].into());
    }
    let cell = cell(setup, question);
    let backends = match reach(question.state, cell) {
        Reach::Backends(backends) => backends,
        refusal @ (Reach::Drop | Reach::Reject) => {
            // netfilter reports the drop to a local sender with EPERM (contract 14, row 8).
            let is_reported = setup.is_kube_proxy()
                && question.source == Source::Host
                && question.protocol == Protocol::Udp
                && question.destination != Destination::NodePort
                && !is_let_go(setup, question);
            let seen = match refusal {
                _ if is_reported => Seen::NotPermitted,
                Reach::Reject if is_let_go(setup, question) => Seen::Silence,
                Reach::Reject => Seen::Refused,
                Reach::Drop | Reach::Backends(_) => Seen::Silence,
            };
            return Ok([seen].into());
        }
    };
    backends.into_iter().map(|backend| answer(setup, question, cell, backend)).collect()
}

/// Whether kube-proxy refuses nothing: in mode iptables, packets of the node itself to an external address (contract
/// 14, row 9).
fn is_let_go(setup: &Setup, question: &Question) -> bool {
    setup.proxy == Proxy::KubeProxy(Mode::Iptables)
        && question.source == Source::Host
        && matches!(question.destination, Destination::ExternalIp | Destination::Vip)
}

/// The answer of one backend, with the client address that it must see.
fn answer(setup: &Setup, question: &Question, cell: Cell, backend: Backend) -> Result<Seen> {
    let source = own_address(question.source, question.family)?;
    let is_hairpin = source == backend.address(question.family)?;
    let is_outside_node =
        matches!(question.source, Source::Outside | Source::OtherPod | Source::OtherNode);
    let masquerades = match setup.proxy {
        // In mode nftables, kube-proxy 1.36 detects hairpins for endpoints of its own node only.
        Proxy::KubeProxy(mode) => {
            let is_seen = backend.is_local || mode == Mode::Iptables;
            cell.masquerades || is_hairpin && is_seen
        }
        // Contract 14, row 4: without masquerade, the answer of a remote backend would bypass node-a.
        Proxy::OursMasquerading => {
            let goes_around = is_outside_node && !backend.is_local && is_external(question);
            cell.masquerades || is_hairpin || goes_around
        }
        Proxy::Ours => is_hairpin || is_outside_node && !backend.is_local,
    };
    if is_outside_node && !backend.is_local && !masquerades {
        return Ok(Seen::Silence);
    }
    // This connection never leaves the pod.
    let stays_within = is_hairpin && backend.is_local && is_connected(setup, question);
    let saw = if stays_within {
        source
    } else if question.source == Source::Host {
        host_address(setup, question, cell, backend)?
    } else if backend.is_local && backend.is_host || !masquerades {
        // A packet that ends on the node itself does not pass POSTROUTING, and keeps its source (contract 3.10).
        source
    } else if setup.proxy == Proxy::Ours && is_hairpin && backend.is_local {
        match question.family {
            Family::V4 => Ipv4Addr::new(192, 0, 0, 8).into(),
            Family::V6 => Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 8).into(),
        }
    } else {
        outgoing_address(setup, backend)?.of(question.family)
    };
    Ok(Seen::Answer(backend.name(), saw))
}

/// Whether the socket hook connects a pod's socket to its backend (`socketLB: all`). It does not where the pod's
/// address decides.
fn is_connected(setup: &Setup, question: &Question) -> bool {
    let depends_on_address = setup.proxy == Proxy::OursMasquerading
        || question.policy == Policy::Local && is_external(question);
    setup.has("socketLB: all")
        && question.source == Source::Backend
        && question.protocol == Protocol::Tcp
        && !depends_on_address
}

/// The address that a backend sees when a process of the node is the client.
fn host_address(
    setup: &Setup,
    question: &Question,
    cell: Cell,
    backend: Backend,
) -> Result<IpAddr> {
    let is_routed_to_frontend = setup.is_kube_proxy() && !cell.masquerades;
    if backend.is_host || is_routed_to_frontend {
        return own_address(Source::Host, question.family);
    }
    Ok(outgoing_address(setup, backend)?.of(question.family))
}

/// The address of the node on the interface towards a backend.
fn outgoing_address(setup: &Setup, backend: Backend) -> Result<Addresses> {
    if setup.shape == Shape::Bridged && backend.is_local && !backend.is_host {
        return address::pod_gateway(1);
    }
    Segment::First.host(address::node(1))
}

/// The cell of contract 3.3, computed by the rules of 3.2.
fn cell(setup: &Setup, question: &Question) -> Cell {
    let detector = match (setup.detector, question.family) {
        (Detector::ClusterCidr4, Family::V4) => Detector::ClusterCidr,
        (Detector::ClusterCidr4, Family::V6) => Detector::None,
        (detector, _) => detector,
    };
    let is_pod = match (detector, question.source) {
        (Detector::None, _) | (_, Source::Host | Source::Outside | Source::OtherNode) => false,
        (_, Source::Pod | Source::Backend) => true,
        (detector, Source::OtherPod) => detector == Detector::ClusterCidr,
    };
    let is_local_policy = question.policy == Policy::Local;
    if !is_external(question) {
        let outsider = detector != Detector::None && !is_pod;
        return Cell {
            is_local_set: is_local_policy,
            masquerades: setup.masquerade_all || outsider,
        };
    }
    let is_short = is_pod || question.source == Source::Host;
    Cell {
        is_local_set: is_local_policy && !is_short,
        masquerades: !is_local_policy || question.source == Source::Host && !is_pod,
    }
}

fn is_external(question: &Question) -> bool {
    question.destination != Destination::ClusterIp
}

/// The endpoints of a state (contract 2.4).
fn reach(state: State, cell: Cell) -> Reach {
    let here = Backend { is_local: true, is_host: false };
    let there = Backend { is_local: false, is_host: false };
    let backends = |list: &[Backend]| Reach::Backends(list.to_vec());
    let hosts = [Backend { is_host: true, ..here }, Backend { is_host: true, ..there }];
    match (state, cell.is_local_set) {
        (State::Unready, _) => Reach::Reject,
        (State::Both | State::Draining, false) => backends(&[here, there]),
        (State::Both | State::Draining | State::LocalDraining, true) => backends(&[here]),
        (State::LocalDraining | State::Remote | State::RemoteDraining, false) => backends(&[there]),
        (State::Remote | State::RemoteDraining, true) => Reach::Drop,
        (State::Hosts, false) => backends(&hosts),
        (State::Hosts, true) => backends(&hosts[..1]),
    }
}

impl Backend {
    fn name(self) -> String {
        let name = match (self.is_local, self.is_host) {
            (true, false) => "pod-a2",
            (false, false) => "pod-b2",
            (true, true) => "node-a",
            (false, true) => "node-b",
        };
        name.to_owned()
    }

    fn address(self, family: Family) -> Result<IpAddr> {
        let node = if self.is_local { 1 } else { 2 };
        let addresses = if self.is_host {
            Segment::First.host(address::node(node))?
        } else {
            address::pod(node, 2)?
        };
        Ok(addresses.of(family))
    }
}

fn own_address(source: Source, family: Family) -> Result<IpAddr> {
    let addresses = match source {
        Source::Pod => address::pod(1, 1)?,
        Source::Backend => address::pod(1, 2)?,
        Source::Host => Segment::First.host(address::node(1))?,
        Source::Outside => Segment::First.host(address::CLIENT)?,
        Source::OtherPod => address::pod(2, 1)?,
        Source::OtherNode => Segment::First.host(address::node(2))?,
    };
    Ok(addresses.of(family))
}
