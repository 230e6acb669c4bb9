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

/// Stands for any address that a server may have seen.
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// A port of `pod-b1`, which serves nothing at the usual one.
pub(super) const OTHER_TARGET: u16 = 9_090;
/// More addresses of `node-a` than its Node object has: one beside the first, and one of another range.
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

/// Changes of the cluster, and what must be true after them.
#[derive(Debug)]
pub struct Step {
    /// The subject of the case.
    pub name: &'static str,
    /// Objects to create or change.
    pub objects: Vec<Value>,
    /// The commands for kubectl after that.
    pub commands: Vec<Vec<String>>,
    /// The cases that must be true then, in the world of a setup.
    pub cases: fn(&Setup) -> Result<Vec<Case>>,
}

/// All steps, one after the other.
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
        // Under another name: the slice now belongs to another Service.
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

/// Labels the slices of both families that have the endpoint on `node-a`.
fn label_slices(label: &str) -> Vec<String> {
    words(&["label", "endpointslice", "relabelled-here-ipv4", "relabelled-here-ipv6", label])
}

fn zone(name: &str) -> Vec<String> {
    let label = format!("topology.kubernetes.io/zone={name}");
    words(&["label", "node", "node-a", &label, "--overwrite"])
}

/// Where `NodePorts` are served with a list of `nodePortAddresses` (contract 3.5): the list, then which of the
/// node's own address and [`MORE_ADDRESSES`] are accepted, of IPv4 and of IPv6.
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
                    all.push(Destination::NodePort.name(), protocol, (source, to), expect);
                }
            }
        }
    }
    all.cases
}

/// The expected answer to a question.
#[derive(Debug, Clone, Copy)]
enum Expect {
    /// These servers answer, and no others.
    By(&'static [&'static str]),
    Refused,
    Silence,
    /// Nobody's packet: it is lost on its way to somewhere else.
    Lost,
}

const BOTH: Expect = Expect::By(&["pod-a2", "pod-b2"]);
const HERE: Expect = Expect::By(&["pod-a2"]);
const THERE: Expect = Expect::By(&["pod-b2"]);

/// Cases in the making.
struct Cases<'a> {
    setup: &'a Setup,
    cases: Vec<Case>,
}

impl<'a> Cases<'a> {
    const fn of(setup: &'a Setup) -> Self {
        Self { setup, cases: Vec::new() }
    }

    /// Somebody asks a Service by number, through both transports and both families.
    fn add(
        &mut self,
        source: Source,
        destination: Destination,
        number: u8,
        expect: Expect,
    ) -> Result<()> {
        matrix().try_for_each(|of| self.one(of, source, (destination, number), expect))
    }

    /// The same through one transport and one family.
    fn one(
        &mut self,
        (family, protocol): (Family, Protocol),
        source: Source,
        (destination, number): (Destination, u8),
        expect: Expect,
    ) -> Result<()> {
        let to = frontend(destination, number, family)?;
        self.push(&format!("{} {number}", destination.name()), protocol, (source, to), expect);
        Ok(())
    }

    /// Somebody asks an address and a port of both families through both transports.
    fn to(&mut self, what: &str, source: Source, (at, port): (Addresses, u16), expect: Expect) {
        for (family, protocol) in matrix() {
            self.push(what, protocol, (source, at.socket(family, port)), expect);
        }
    }

    fn push(
        &mut self,
        what: &str,
        protocol: Protocol,
        (source, to): (Source, SocketAddr),
        expect: Expect,
    ) {
        // netfilter tells a sender of its own node (contract 14, row 8).
        let is_told = self.setup.is_kube_proxy()
            && (source, protocol) == (Source::Host, Protocol::Udp)
            && !what.starts_with(Destination::NodePort.name());
        let expected: Outcome = match expect {
            Expect::By(servers) => {
                servers.iter().map(|server| Seen::Answer((*server).to_owned(), ANY)).collect()
            }
            Expect::Refused | Expect::Silence if is_told => [Seen::NotPermitted].into(),
            Expect::Refused => [Seen::Refused].into(),
            Expect::Silence | Expect::Lost => [Seen::Silence].into(),
        };
        let name = format!("{} asks {what} by {protocol} ({to})", source.name());
        self.cases.push(Case { name, source, protocol, to, expected });
    }
}

/// Makes what was seen comparable with what is expected, where it is the same whom a server saw.
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
