//! The rows of contract 5: UDP flows, and one TCP connection, whose endpoint or Service changes.

use anyhow::Result;
use serde_json::{Value, json};

use super::objects::{a2, b2, endpoint, service, slices};
use super::question::Destination;
use crate::rig::TARGET;
use crate::topology::Addresses;
use crate::topology::address::{self, Segment};
use crate::traffic::Protocol;

/// A second port that the pod of `node-a` serves during these tests.
pub const SECOND_TARGET: u16 = 9_191;
/// The number of the Service that all rows use.
pub const STALE: u8 = 140;
const NAME: &str = "stale";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// The server with this name answers.
    By(&'static str),
    /// No server answers; the client may or may not get an error.
    Nobody,
}

/// One state of the Service, and the answers that flows must get.
#[derive(Debug)]
pub struct Phase {
    /// Objects to create or change; if empty, the Service is deleted.
    pub objects: Vec<Value>,
    /// The answer to a flow that begins in this state.
    pub new: Answers,
    /// The answer to a flow that began in the first state.
    pub old: Answers,
    /// The answer of kube-proxy 1.36 to a flow that began in the first state (contract 14, row 1).
    pub old_with_kube_proxy: Answers,
}

/// A row of contract 5: a sequence of states.
#[derive(Debug)]
pub struct Row {
    /// The number of the row in the contract, and its subject.
    pub name: &'static str,
    /// The kinds of address at which the Service is used.
    pub destinations: &'static [Destination],
    /// Whether the flows are TCP connections; otherwise they are datagrams.
    pub is_tcp: bool,
    /// The states in order; the flows begin in the first one.
    pub phases: Vec<Phase>,
}

const A2: Answers = Answers::By("pod-a2");
const B2: Answers = Answers::By("pod-b2");
const BOTH_WAYS: &[Destination] = &[Destination::ClusterIp, Destination::NodePort];
const INSIDE: &[Destination] = &[Destination::ClusterIp];

/// A state with the same answer to an old flow for all proxies.
const fn phase(objects: Vec<Value>, new: Answers, old: Answers) -> Phase {
    Phase { objects, new, old, old_with_kube_proxy: old }
}

fn objects(more: &Value, port: u16, endpoints: &[(Addresses, Value)]) -> Result<Vec<Value>> {
    let ports = [("tcp", Protocol::Tcp, port), ("udp", Protocol::Udp, port)];
    let mut all = vec![service(NAME, STALE, more)?];
    all.extend(slices(NAME, NAME, &ports, endpoints));
    Ok(all)
}

/// All rows but CT8 (flows that belong to no Service) and CT12 (the kinds of client).
pub fn rows() -> Result<Vec<Row>> {
    let plain = json!({});
    let conditions = |ready: bool, serving: bool, terminating: bool| json!({"conditions": {"ready": ready, "serving": serving, "terminating": terminating}});
    let row = |name, phases| Row { name, destinations: BOTH_WAYS, is_tcp: false, phases };
    let of = |endpoints: &[(Addresses, Value)]| objects(&plain, TARGET, endpoints);
    let first = || Ok::<_, anyhow::Error>(phase(of(&[a2(&plain)?])?, A2, A2));
    let nobody = || Ok::<_, anyhow::Error>(phase(of(&[])?, Answers::Nobody, Answers::Nobody));
    let unready = a2(&conditions(false, false, false))?;
    let draining = a2(&conditions(false, true, true))?;
    let gone = phase(of(&[b2(&plain)?])?, B2, B2);
    let mut all = vec![
        row("CT1: the endpoint is removed, another one exists", vec![first()?, gone]),
        row(
            "CT2: the endpoint is neither ready nor serving",
            vec![first()?, phase(of(&[unready.clone(), b2(&plain)?])?, B2, B2)],
        ),
        row(
            "CT3: the endpoint is terminating and still serving",
            vec![first()?, phase(of(&[draining, b2(&plain)?])?, B2, A2)],
        ),
        row("CT5: the first endpoint is added", vec![nobody()?, first()?]),
        row(
            "CT6: the first endpoint is not ready yet",
            vec![nobody()?, phase(of(&[unready])?, Answers::Nobody, Answers::Nobody), first()?],
        ),
        row(
            "CT7: another port of the same endpoint",
            vec![first()?, phase(objects(&plain, SECOND_TARGET, &[a2(&plain)?])?, A2, A2)],
        ),
        row(
            "CT9: the last endpoint is removed",
            vec![first()?, Phase { old_with_kube_proxy: A2, ..nobody()? }],
        ),
        row(
            "CT10: the Service is deleted",
            vec![
                first()?,
                Phase {
                    old_with_kube_proxy: A2,
                    ..phase(Vec::new(), Answers::Nobody, Answers::Nobody)
                },
            ],
        ),
    ];
    all.push(Row {
        is_tcp: true,
        ..row(
            "CT11: the endpoint of a connection is removed",
            vec![first()?, phase(of(&[b2(&plain)?])?, B2, A2)],
        )
    });
    all.extend(local(&plain)?);
    Ok(all)
}

/// Rows in which `internalTrafficPolicy` is, or becomes, `Local`.
fn local(plain: &Value) -> Result<Vec<Row>> {
    let local = json!({"spec": {"internalTrafficPolicy": "Local"}});
    let cluster = json!({"spec": {"internalTrafficPolicy": "Cluster"}});
    let host = endpoint(Segment::First.host(address::node(1))?, "node-a", plain);
    let row = |name, phases| Row { name, destinations: INSIDE, is_tcp: false, phases };
    let by_host = Answers::By("node-a");
    Ok(vec![
        row(
            "CT4a: the local endpoint is removed, another local one is added",
            vec![
                phase(objects(&local, TARGET, &[a2(plain)?])?, A2, A2),
                phase(objects(&local, TARGET, &[b2(plain)?])?, Answers::Nobody, Answers::Nobody),
                phase(objects(&local, TARGET, &[b2(plain)?, host])?, by_host, by_host),
            ],
        ),
        row(
            "CT4b: the endpoint is serving, but the new policy excludes it",
            vec![
                phase(objects(&cluster, TARGET, &[b2(plain)?])?, B2, B2),
                phase(objects(&local, TARGET, &[a2(plain)?, b2(plain)?])?, A2, B2),
            ],
        ),
    ])
}
