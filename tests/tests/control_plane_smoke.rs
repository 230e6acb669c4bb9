//! The properties of the harness's control plane that other tests rely on. Needs root.

use std::process;
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::control_plane::kube_proxy::{self, KubeProxy, Mode};
use lb_tests::control_plane::{ControlPlane, Node, Options, Pod};
use lb_tests::netns::Netns;
use lb_tests::wait::wait_until;

const SOON: Duration = Duration::from_mins(1);

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.7.7
  clusterIPs: [10.96.7.7, 'fd00:10:96::77']
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
";

const NODE: Node<'_> = Node {
    name: "node-a",
    addresses: &["192.0.2.1", "2001:db8::1"],
    pod_cidrs: &["10.1.0.0/24", "fd00:1::/64"],
    labels: &[("topology.kubernetes.io/zone", "a")],
};

const PODS: [Pod<'_>; 2] = [
    Pod { name: "web-1", addresses: &["10.1.0.11", "fd00:1::11"], ..web() },
    Pod { name: "web-2", addresses: &["10.1.0.12", "fd00:1::12"], ..web() },
];

/// The parts share one control plane, because its start takes most of the time.
#[test]
fn control_plane_meets_the_needs_of_the_tests() -> Result<()> {
    let netns = namespace("smoke")?;
    let mut control_plane = start_in(&netns)?;
    control_plane.node(&NODE)?;
    control_plane.apply(SERVICE)?;
    control_plane.pods(&PODS)?;
    kube_proxy_programs_its_namespace_in_both_modes(&netns, &control_plane)?;
    slices_follow_pods_across_a_restart_of_the_api_server(&mut control_plane)?;
    nothing_outlives_its_control_plane(&netns, control_plane)
}

fn slices_follow_pods_across_a_restart_of_the_api_server(
    control_plane: &mut ControlPlane,
) -> Result<()> {
    wait_for(control_plane, &["10.1.0.11", "10.1.0.12", "fd00:1::11", "fd00:1::12"])?;

    control_plane.stop_api_server();
    ensure!(control_plane.kubectl(&["get", "nodes"]).is_err(), "a stopped server answered");
    control_plane.restart_api_server()?;
    control_plane.pod(&Pod { ready: false, ..PODS[0] })?;
    wait_for(control_plane, &["10.1.0.12", "fd00:1::12"])?;

    control_plane.remove_pod("default", "web-2")?;
    wait_for(control_plane, &[])
}

fn kube_proxy_programs_its_namespace_in_both_modes(
    netns: &Netns,
    control_plane: &ControlPlane,
) -> Result<()> {
    let kubeconfig = control_plane.kubeconfig();
    for (mode, tool, arguments) in [
        (Mode::Nftables, "nft", ["list", "ruleset"]),
        (Mode::Iptables, "iptables-save", ["-t", "nat"]),
    ] {
        let options = kube_proxy::Options::new(netns.name(), mode, &kubeconfig, NODE.name);
        let _kube_proxy = KubeProxy::start(&options)?;
        wait_until(SOON, &format!("{mode:?} rules for 10.1.0.12"), || {
            netns.tool(tool, &arguments).ok()?.contains("10.1.0.12").then_some(())
        })?;
    }
    Ok(())
}

fn nothing_outlives_its_control_plane(netns: &Netns, control_plane: ControlPlane) -> Result<()> {
    let directory = control_plane.kubeconfig();
    let inhabitants = || netns.tool("ip", &["netns", "pids", netns.name()]);
    // Queried with `ip`, because namespaces are only visible from inside.
    wait_until(SOON, "etcd, API server and controller manager in the namespace", || {
        (inhabitants().ok()?.lines().count() == 4).then_some(())
    })?;
    drop(control_plane);
    ensure!(inhabitants()?.lines().count() == 1, "a process outlived its control plane");
    ensure!(!directory.exists(), "{} outlived its control plane", directory.display());
    Ok(())
}

const fn web() -> Pod<'static> {
    Pod {
        name: "",
        namespace: "default",
        node: NODE.name,
        addresses: &[],
        labels: &[("app", "web")],
        ports: &[("http", 8080)],
        ready: true,
        host_network: false,
    }
}

fn start_in(netns: &Netns) -> Result<ControlPlane> {
    ControlPlane::start(Options {
        netns: Some(netns.name().to_owned()),
        address: NODE.addresses[0].parse()?,
        ..Options::default()
    })
}

fn wait_for(control_plane: &ControlPlane, expected: &[&str]) -> Result<()> {
    let what = format!("ready addresses {expected:?} of default/web");
    wait_until(SOON, &what, || {
        let ready = control_plane.ready_addresses("default", "web").ok()?;
        (ready == expected).then_some(())
    })
}

/// A network namespace with a loopback interface only, which has the address of the node.
fn namespace(purpose: &str) -> Result<Netns> {
    let netns = Netns::new(&format!("lbt-{}-0-{purpose}", process::id()))?;
    netns.ip("address add 192.0.2.1/32 dev lo")?;
    Ok(netns)
}
