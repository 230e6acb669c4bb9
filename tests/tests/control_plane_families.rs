//! A Service that changes from one address family to both and back while clients use it: the real API server assigns
//! and removes addresses, the real controller creates and removes slices, and packets of the added family follow.
//!
//! Packets of the other family are not affected.

use anyhow::{Context as _, Result, ensure};
use lb_tests::cluster::{Cluster, until, until_answered_by};
use lb_tests::rig::{TARGET, ask};
use lb_tests::topology::{Family, Shape};
use lb_tests::traffic::{Ask, Protocol};

const PORT: u16 = 80;

#[test]
fn families_of_a_service_come_and_go() -> Result<()> {
    let cluster = Cluster::start(Shape::Routed)?;
    for (first, second) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
        one_service(&cluster, first, second).with_context(|| format!("{first:?} first"))?;
    }
    Ok(())
}

fn one_service(cluster: &Cluster, first: Family, second: Family) -> Result<()> {
    let (rig, name) = (cluster.rig(), format!("web-{}", first.name().to_lowercase()));
    cluster.pod_object(&name, rig.pod(1, 1)?, true)?;
    let port = |protocol: Protocol| {
        let (name, kind) = (protocol.name().to_lowercase(), protocol.name());
        format!("{{name: {name}, protocol: {kind}, port: {PORT}, targetPort: {TARGET}}}")
    };
    cluster.control_plane().apply(&format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{type: NodePort, \
         selector: {{app: {name}}}, ipFamilyPolicy: SingleStack, ipFamilies: [{}], \
         ports: [{}]}}}}",
        first.name(),
        Protocol::ALL.map(port).join(", ")
    ))?;
    let [own]: [String; 1] =
        addresses(cluster, &name)?.try_into().map_err(|all| anyhow::anyhow!("{all:?}"))?;
    // A Service keeps its NodePorts when its families change.
    let ports = node_ports(cluster, &name)?;
    is_answered(cluster, ports, first, &own)?;
    is_not_answered(cluster, ports, second, None)?;
    // A load in the first family, which must lose nothing in all of the following.
    let question = Ask::tcp(socket(&own)?);
    let loads = [true, false]
        .map(|kept| rig.pod(0, 0)?.peer().load(question, kept, 5).map_err(anyhow::Error::from));
    for policy in ["PreferDualStack", "RequireDualStack", "PreferDualStack"] {
        set(cluster, &name, policy)?;
        let all = addresses(cluster, &name)?;
        let [kept, other] = all.as_slice() else { anyhow::bail!("{policy}: {all:?}") };
        ensure!(*kept == own, "{policy}: {kept} instead of {own}");
        is_answered(cluster, ports, first, kept)?;
        is_answered(cluster, ports, second, other)?;
    }
    let gone = addresses(cluster, &name)?.pop().context("no address")?;
    set(cluster, &name, "SingleStack")?;
    ensure!(addresses(cluster, &name)? == [own.clone()], "an address of the other family is left");
    is_not_answered(cluster, ports, second, Some(&gone))?;
    is_answered(cluster, ports, first, &own)?;
    ensure!(node_ports(cluster, &name)? == ports, "other NodePorts than {ports:?}");
    for load in loads {
        drop(load?.finish_without_loss()?);
    }
    drop(cluster.control_plane().kubectl(&["delete", "service", &name])?);
    cluster.control_plane().remove_pod("default", "pod-b2")
}

fn set(cluster: &Cluster, name: &str, policy: &str) -> Result<()> {
    let patch = format!("{{\"spec\":{{\"ipFamilyPolicy\":\"{policy}\"}}}}");
    cluster.control_plane().kubectl(&["patch", "service", name, "-p", &patch]).map(drop)
}

/// The addresses that the API server has given to the Service, in its order.
fn addresses(cluster: &Cluster, name: &str) -> Result<Vec<String>> {
    let said = field(cluster, name, "{.spec.clusterIPs[*]}")?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

fn field(cluster: &Cluster, name: &str, path: &str) -> Result<String> {
    let path = format!("jsonpath={path}");
    cluster.control_plane().kubectl(&["get", "service", name, "-o", &path])
}

fn socket(address: &str) -> Result<std::net::SocketAddr> {
    Ok(std::net::SocketAddr::new(address.parse()?, PORT))
}

/// Checks the `ClusterIP` from a pod, and the `NodePort` of both nodes from the external client.
fn is_answered(cluster: &Cluster, ports: [u16; 2], family: Family, address: &str) -> Result<()> {
    let rig = cluster.rig();
    for (protocol, port) in Protocol::ALL.into_iter().zip(ports) {
        let question = Ask::new(protocol, socket(address)?);
        until_answered_by(rig.pod(0, 0)?, question, &["pod-b2"])?;
        for node in rig.topology().nodes() {
            let question = Ask::new(protocol, node.addresses().socket(family, port));
            until_answered_by(rig.client(), question, &["pod-b2"])?;
        }
    }
    Ok(())
}

fn is_not_answered(
    cluster: &Cluster,
    ports: [u16; 2],
    family: Family,
    address: Option<&str>,
) -> Result<()> {
    let rig = cluster.rig();
    for (protocol, port) in Protocol::ALL.into_iter().zip(ports) {
        if let Some(address) = address {
            until(
                rig.pod(0, 0)?,
                Ask::new(protocol, socket(address)?).within(500),
                Result::is_err,
            )?;
        }
        let question = Ask::new(protocol, rig.node(0)?.addresses().socket(family, port));
        until(rig.client(), question.within(500), Result::is_err)?;
        ensure!(ask(rig.client(), question.within(500)).is_err(), "{question:?} is answered");
    }
    Ok(())
}

/// Returns the NodePorts of the Service, in the order of its ports, which is that of [`Protocol::ALL`].
fn node_ports(cluster: &Cluster, name: &str) -> Result<[u16; 2]> {
    let said = field(cluster, name, "{.spec.ports[*].nodePort}")?;
    let ports = said.split_whitespace().map(str::parse).collect::<Result<Vec<u16>, _>>()?;
    <[u16; 2]>::try_from(ports).map_err(|ports| anyhow::anyhow!("NodePorts {ports:?}"))
}
