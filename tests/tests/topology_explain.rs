//! The command `explain` against the kernel: it names the backend of each question before the question is sent, and the
//! reason for a refusal.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Addresses, Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Protocol};

const NODE_PORT: u16 = 30_080;
/// The number of questions of each client, each from another port.
const QUESTIONS: u16 = 12;

in_both_shapes!(
    backend_is_named_before_the_question_is_asked,
    refusals_name_the_reason_and_the_remedy,
    a_dead_agent_is_no_obstacle_and_no_flow_begins,
    datagram_to_a_socket_of_the_node_is_no_request,
);

fn unused_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(42_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The arguments of `explain`.
fn arguments(from: SocketAddr, to: SocketAddr, protocol: Protocol) -> [String; 6] {
    let protocol = protocol.name().to_lowercase();
    let format = ["-o", "name"].map(str::to_owned);
    let [output, name] = format;
    let protocol = format!("--protocol={protocol}");
    ["explain".to_owned(), from.to_string(), to.to_string(), protocol, output, name]
}

/// The backend that `explain` names.
fn named(
    agent: &Agent,
    from: SocketAddr,
    to: SocketAddr,
    protocol: Protocol,
) -> Result<SocketAddr> {
    let arguments = arguments(from, to, protocol);
    let said = agent.command(&arguments.each_ref().map(String::as_str))?;
    said.trim().parse().with_context(|| format!("{arguments:?}: {said:?}"))
}

/// A Service with backends on both nodes, in pods and on host networks.
fn web(rig: &Rig) -> Result<Service> {
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let pods = rig.pods().into_iter().map(Endpoint::pod);
    Ok(web.endpoints(pods.chain([Endpoint::host(rig.node(1)?)])))
}

fn backend_is_named_before_the_question_is_asked(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web(&rig)?;
    let rig = rig.start(&[&web])?;
    let agent = rig.agent(0)?;
    let members: Vec<&Member> =
        rig.pods().into_iter().map(|pod| &**pod).chain([&**rig.node(1)?]).collect();
    for (family, protocol) in matrix() {
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
        let pod = (&**rig.pod(0, 0)?, web.frontend(family));
        for (from, to) in [pod, (rig.client(), node_port)] {
            for _ in 0..QUESTIONS {
                let source = SocketAddr::new(from.ip(family), unused_port());
                let backend = named(agent, source, to, protocol)?;
                let answer = ask(from, Ask::new(protocol, to).from_port(source.port()))?;
                let expected = members.iter().find(|it| it.ip(family) == backend.ip());
                let expected =
                    expected.with_context(|| format!("no member has the address of {backend}"))?;
                ensure!(answer.server == expected.name(), "{backend} was named: {answer:?}");
            }
        }
    }
    Ok(())
}

fn refusals_name_the_reason_and_the_remedy(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    let vip = Addresses::parse("198.51.100.8", "fd00:198::8")?;
    let empty = Service::new("empty", 11)?.port(80, TARGET).node_port(30_081);
    let closed = Service::new("closed", 12)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let closed = closed.load_balancer(&vip.both(), &["203.0.113.0/24", "2001:db8::/32"]);
    let far = Service::new("far", 13)?.port(80, TARGET).node_port(30_082);
    let far = far.external_policy_local().pods(&[rig.pod(1, 0)?]);
    let rig = rig.start(&[&empty, &closed, &far])?;
    let agent = rig.agent(0)?;
    for family in Family::ALL {
        let (pod, client) = (rig.pod(0, 0)?.ip(family), rig.client().ip(family));
        let node = rig.node(0)?.addresses();
        let unused = SocketAddr::new(empty.frontend(family).ip(), 81);
        for (from, to, words) in [
            (pod, empty.frontend(family), ["no_backend", "default/empty:"]),
            (client, node.socket(family, 30_081), ["no_backend", "NodePort"]),
            (pod, unused, ["unknown_port", "lb list"]),
            (client, SocketAddr::new(vip.of(family), 80), ["source_not_allowed", "restricted"]),
            (client, node.socket(family, 30_082), ["no_local_backend", "Local"]),
            (client, SocketAddr::new(pod, 80), ["not_ours", "lb list"]),
        ] {
            says(agent, from, to, &words)?;
        }
    }
    let (code, text) =
        agent.exit_code(&["explain", "10.0.0.1", "10.0.0.2:80", "--device", "none"])?;
    ensure!(code == 1 && text.contains("ip link"), "{code}: {text}");
    let (code, text) = agent.exit_code(&["explain", "nobody", "10.0.0.2:80"])?;
    ensure!(code == 2 && text.contains("ADDRESS:PORT"), "{code}: {text}");
    Ok(())
}

fn says(agent: &Agent, from: IpAddr, to: SocketAddr, words: &[&str]) -> Result<()> {
    let (from, to) = (from.to_string(), to.to_string());
    let arguments = ["explain", from.as_str(), to.as_str()];
    let said = agent.exit_said(&arguments)?;
    let (code, text) = agent.exit_code(&arguments)?;
    ensure!(code == 1, "{arguments:?} ended with {code}: {said}{text}");
    ensure!(
        words.iter().all(|word| said.contains(word)),
        "{arguments:?}: {words:?} not in\n{said}"
    );
    Ok(())
}

fn a_dead_agent_is_no_obstacle_and_no_flow_begins(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    let web = web(&rig)?;
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    agent.kill9()?;
    let pod = rig.pod(0, 0)?;
    for (family, protocol) in matrix() {
        let (from, to) = (SocketAddr::new(pod.ip(family), unused_port()), web.frontend(family));
        let _backend: SocketAddr = named(&agent, from, to, protocol)?;
        let (port, node) = (unused_port().to_string(), rig.node(0)?.ip(family));
        let to = to.to_string();
        let said =
            agent.command(&["explain", &SocketAddr::new(node, port.parse()?).to_string(), &to])?;
        ensure!(said.contains("process on this node"), "{said}");
    }
    let flows = agent.command(&["ct", "list", "-o", "json"])?;
    ensure!(flows.trim() == "[]", "explain began flows: {flows}");
    Ok(())
}

/// A socket of the node has the number of a `NodePort` as its port, and has sent nothing to its peer.
fn datagram_to_a_socket_of_the_node_is_no_request(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = web(&rig)?;
    let rig = rig.start(&[&web])?;
    for family in Family::ALL {
        let own = rig.node(0)?.addresses().socket(family, NODE_PORT);
        let [peer, other] = [unused_port(), unused_port()]
            .map(|port| SocketAddr::new(rig.client().ip(family), port));
        let socket = rig.node(0)?.home().run_in(|| UdpSocket::bind(own))??;
        socket.connect(peer)?;
        let arguments = arguments(peer, own, Protocol::Udp);
        let (code, said) = rig.agent(0)?.ended(&arguments.each_ref().map(String::as_str)[..4])?;
        let is_named = ["not_ours", "another source port"].iter().all(|it| said.contains(it));
        ensure!(code == 1 && is_named, "{arguments:?}: {code}: {said}");
        let _backend: SocketAddr = named(rig.agent(0)?, other, own, Protocol::Udp)?;
    }
    Ok(())
}
