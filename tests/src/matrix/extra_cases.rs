//! Statements of the contract besides its matrix: source ranges, hints, all forms of slices, and changes of all of
//! these (contract 1 to 4, 14).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;
use serde_json::{Value, json};

mod changing;
mod first;
mod frontends;
mod later;
mod published;

use super::objects::{PORTS, a2, slices};
use super::question::{
    Case, Destination, FIRST, Outcome, Seen, Source, addresses, frontend, node_port,
};
use super::setup::Setup;
use crate::rig::matrix;
use crate::topology::{Addresses, Family};
use crate::traffic::Protocol;
pub(super) use published::BOUND;
pub use published::{BRIEFLY_STICKY, HEALTH_CHECKS, SCTP, STICKY};
use published::{HEADLESS, PROXY_NAME};

/// A wildcard for the client address that a server saw.
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// The port at which `pod-b1` serves, in place of the usual one.
pub(super) const OTHER_TARGET: u16 = 9_090;
/// Addresses of `node-a` that its Node object lacks: one in the network of the first address, and one in another
/// network.
pub(super) const MORE_ADDRESSES: [Addresses; 2] = [
    Addresses {
        v4: Ipv4Addr::new(192, 168, 50, 211),
        v6: std::net::Ipv6Addr::new(0xfd00, 0x50, 0, 0, 0, 0, 0, 0x211),
    },
    Addresses {
        v4: Ipv4Addr::new(172, 31, 9, 1),
        v6: std::net::Ipv6Addr::new(0xfd00, 0x31, 0, 0, 0, 0, 0, 1),
    },
];

/// Changes of the cluster, and the cases that must hold after them.
#[derive(Debug)]
pub struct Step {
    /// The name of the step in messages.
    pub name: &'static str,
    /// Objects to create or change.
    pub objects: Vec<Value>,
    /// The kubectl commands to run after that.
    pub commands: Vec<Vec<String>>,
    /// The cases that must hold afterwards, for the setup of a world.
    pub cases: fn(&Setup) -> Result<Vec<Case>>,
}

/// All steps, in order.
pub fn steps() -> Result<Vec<Step>> {
    let first = Step {
        name: "as published",
        objects: published::objects()?,
        commands: Vec::new(),
        cases: first::cases,
    };
    let external_name = json!({"spec": {
        "type": "ExternalName", "externalName": "elsewhere.example", "clusterIP": null,
        "clusterIPs": null, "ipFamilies": null, "ipFamilyPolicy": null, "externalIPs": null,
    }});
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
    let withdrawn = json!({"status": {"loadBalancer": {"ingress": []}}});
    let first_vips = addresses(Destination::Vip, 129)?.both().map(|ip| json!({"ip": ip}));
    let one_vip = json!({"status": {"loadBalancer": {"ingress": first_vips}}});
    let mut commands = vec![
        words(&["label", "service", "labelled", &format!("{PROXY_NAME}=another")]),
        patch("named", &external_name, None),
        patch("policy", &local, None),
        patch("withdrawn", &withdrawn, Some("--subresource=status")),
        patch("vips-129", &one_vip, Some("--subresource=status")),
        label_slices(&format!("{HEADLESS}=")),
        zone("zone-b"),
        words(&["delete", "service", "deleted"]),
    ];
    commands.extend(changing::changes().map(|(service, change)| patch(&service, &change, None)));
    let changed = Step {
        name: "changed",
        // With the label of another Service, so that the slices now belong to that one.
        objects: slices("moves", "moved-to", &PORTS, &[a2(&json!({}))?]),
        commands,
        cases: later::changed,
    };
    let back = Step {
        name: "changed back",
        objects: Vec::new(),
        commands: vec![
            words(&["label", "service", "labelled", &format!("{PROXY_NAME}-")]),
            label_slices(&format!("{HEADLESS}-")),
            zone("zone-a"),
        ],
        cases: later::changed_back,
    };
    Ok(vec![first, changed, back])
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn patch(service: &str, change: &Value, flag: Option<&str>) -> Vec<String> {
    let change = change.to_string();
    let patch = ["patch", "service", service, "--type=merge", "-p", &change];
    patch.into_iter().chain(flag).map(str::to_owned).collect()
}

/// The command that labels the slices of both families with the endpoint on `node-a`.
fn label_slices(label: &str) -> Vec<String> {
    words(&["label", "endpointslice", "relabelled-here-ipv4", "relabelled-here-ipv6", label])
}

fn zone(name: &str) -> Vec<String> {
    let label = format!("topology.kubernetes.io/zone={name}");
    words(&["label", "node", "node-a", &label, "--overwrite"])
}

/// Values of `nodePortAddresses` (contract 3.5), and whether `NodePorts` are served at the node's own address and at
/// each of [`MORE_ADDRESSES`], for IPv4 and for IPv6.
pub const NODE_PORT_ADDRESSES: [(&[&str], [[bool; 3]; 2]); 6] = [
    (&[], [[true, false, false]; 2]),
    (&["primary"], [[true, false, false]; 2]),
    (&["192.168.50.0/24"], [[true, true, false], [true; 3]]),
    (&["172.31.0.0/16", "fd00:50::211/128"], [[false, false, true], [false, true, false]]),
    (&["0.0.0.0/0"], [[true; 3]; 2]),
    (&["192.168.50.211/32", "::/0"], [[false, true, false], [true; 3]]),
];

/// The questions to a `NodePort` at every address of the node.
pub fn node_port_cases(setup: &Setup, own: Addresses, accepted: [[bool; 3]; 2]) -> Vec<Case> {
    let mut all = Cases::of(setup);
    let places = [own, MORE_ADDRESSES[0], MORE_ADDRESSES[1]];
    let node_port = node_port(FIRST);
    for (family, accepted) in Family::ALL.into_iter().zip(accepted) {
        for (place, is_accepted) in places.iter().zip(accepted) {
            let expect = if is_accepted { BOTH } else { Expect::Refused };
            for source in [Source::Pod, Source::Host, Source::Outside, Source::OtherNode] {
                for protocol in Protocol::ALL {
                    let to = place.socket(family, node_port);
                    all.push(Destination::NodePort.name(), protocol, source, to, expect);
                }
            }
        }
    }
    all.cases
}

/// The expected answer to a question.
#[derive(Debug, Clone, Copy)]
enum Expect {
    /// Exactly these servers answer.
    By(&'static [&'static str]),
    Refused,
    Silence,
    /// The packet belongs to no Service, and is lost on its way to another destination.
    Lost,
}

const BOTH: Expect = Expect::By(&["pod-a2", "pod-b2"]);
const HERE: Expect = Expect::By(&["pod-a2"]);
const THERE: Expect = Expect::By(&["pod-b2"]);

/// A list of cases under construction.
struct Cases<'a> {
    setup: &'a Setup,
    cases: Vec<Case>,
}

impl<'a> Cases<'a> {
    const fn of(setup: &'a Setup) -> Self {
        Self { setup, cases: Vec::new() }
    }

    /// Adds cases in which a client uses a Service by its number, with both transports and both families.
    fn add(
        &mut self,
        source: Source,
        destination: Destination,
        number: u8,
        expect: Expect,
    ) -> Result<()> {
        matrix().try_for_each(|(family, protocol)| {
            self.one(family, protocol, source, destination, number, expect)
        })
    }

    /// Adds one case in which a client uses a Service by its number.
    fn one(
        &mut self,
        family: Family,
        protocol: Protocol,
        source: Source,
        destination: Destination,
        number: u8,
        expect: Expect,
    ) -> Result<()> {
        let to = frontend(destination, number, family)?;
        self.push(&format!("{} {number}", destination.name()), protocol, source, to, expect);
        Ok(())
    }

    /// Adds cases in which a client uses an address and port, with both transports and both families.
    fn to(&mut self, what: &str, source: Source, at: Addresses, port: u16, expect: Expect) {
        for (family, protocol) in matrix() {
            self.push(what, protocol, source, at.socket(family, port), expect);
        }
    }

    fn push(
        &mut self,
        what: &str,
        protocol: Protocol,
        source: Source,
        to: SocketAddr,
        expect: Expect,
    ) {
        // netfilter reports the drop to a local sender with EPERM (contract 14, row 8).
        let is_reported = self.setup.is_kube_proxy()
            && (source, protocol) == (Source::Host, Protocol::Udp)
            && !what.starts_with(Destination::NodePort.name());
        let expected: Outcome = match expect {
            Expect::By(servers) => {
                servers.iter().map(|server| Seen::Answer((*server).to_owned(), ANY)).collect()
            }
            Expect::Refused | Expect::Silence if is_reported => [Seen::NotPermitted].into(),
            Expect::Refused => [Seen::Refused].into(),
            Expect::Silence | Expect::Lost => [Seen::Silence].into(),
        };
        let name = format!("{} asks {what} by {protocol} ({to})", source.name());
        self.cases.push(Case { name, source, protocol, to, expected });
    }
}

/// Replaces the addresses in an outcome by `ANY`, for cases that do not prescribe them.
pub fn without_addresses(outcome: &Outcome) -> Outcome {
    let bare = |seen: &Seen| {
        if let Seen::Answer(server, _) = seen {
            Seen::Answer(server.clone(), ANY)
        } else {
            seen.clone()
        }
    };
    outcome.iter().map(bare).collect()
}
