//! Questions of processes on a node to a `ClusterIP` and a `NodePort`: TCP through the socket hooks, UDP by translated
//! packets.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{
    Rig, Shared, TARGET, answered_by, ask, different_servers, matrix, refused, until,
};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Ask, Protocol};

const NODE_PORT: u16 = 30_080;

in_both_shapes!(
    cluster_ip_answers_and_shows_itself_as_peer,
    node_port_answers_on_own_and_other_node,
    node_port_answers_on_loopback_where_it_is_asked_for,
    node_port_is_not_on_loopback_by_itself,
    service_wins_over_a_process_that_listens_on_its_numbers,
    process_that_listens_at_a_cluster_ip_has_that_port_of_it,
    unconnected_socket_talks_to_two_services,
    every_backend_gets_its_share,
    service_without_endpoints_is_refused,
    mapped_address_is_the_ipv4_service,
    backend_on_the_own_host_answers,
    plain_traffic_of_the_host_is_left_alone,
);

fn rig(shape: Shape) -> Result<(Shared, Service)> {
    let rig = Rig::shared(shape)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    Ok((rig.start(&[&web])?, web))
}

fn cluster_ip_answers_and_shows_itself_as_peer(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape)?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.frontend(family));
        let answer = ask(rig.node(0)?, question)?;
        ensure!(answer.peer == question.to, "getpeername returns the backend: {answer:?}");
        if protocol == Protocol::Tcp {
            ensure!(answer.client.port() == answer.local.port(), "{answer:?}");
        }
        let answer = ask(rig.node(0)?, question.unconnected())?;
        ensure!(answer.peer == question.to, "recvmsg returns the backend: {answer:?}");
    }
    Ok(())
}

fn node_port_answers_on_own_and_other_node(shape: Shape) -> Result<()> {
    let (rig, _) = rig(shape)?;
    for (family, protocol) in matrix() {
        for node in rig.topology().nodes() {
            let question = Ask::new(protocol, node.addresses().socket(family, NODE_PORT));
            for question in [question, question.unconnected()] {
                let answer = ask(rig.node(0)?, question)?;
                ensure!(answer.peer == question.to, "{answer:?}");
            }
        }
    }
    Ok(())
}

fn node_port_answers_on_loopback_where_it_is_asked_for(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    rig.manifests().apply(&web)?;
    rig.start_agents(&["--iptables-localhost-nodeports"])?;
    for (family, protocol) in matrix() {
        let loopback: &[&str] =
            if family == Family::V4 { &["127.0.0.1", "127.9.9.9"] } else { &["::1"] };
        for address in loopback {
            let question = Ask::new(protocol, SocketAddr::new(address.parse()?, NODE_PORT));
            for question in [question, question.unconnected()] {
                let answer = ask(rig.node(0)?, question)?;
                ensure!(answer.server.starts_with("pod-"), "{answer:?}");
                ensure!(answer.peer == question.to, "{answer:?}");
            }
        }
    }
    Ok(())
}

/// Contract 13: `NodePorts` on loopback are served only with the setting for them. No other process listens there.
fn node_port_is_not_on_loopback_by_itself(shape: Shape) -> Result<()> {
    let (rig, _) = rig(shape)?;
    for (family, protocol) in matrix() {
        let loopback = if family == Family::V4 { "127.0.0.1" } else { "::1" };
        let to = SocketAddr::new(loopback.parse()?, NODE_PORT);
        refused(rig.node(0)?, Ask::new(protocol, to))?;
    }
    Ok(())
}

/// As with `NodeLocal` `DNSCache`: an interface of the node has the ClusterIP, and a process listens there. Ports
/// without a listener belong to the Service, and so do all ports once the process has ended.
fn process_that_listens_at_a_cluster_ip_has_that_port_of_it(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let dns = Service::new("dns", 10)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    let other = Service::new("other", 11)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    let rig = rig.start(&[&dns, &other])?;
    let (node, backend) = (rig.node(0)?, rig.pod(1, 0)?.name());
    let everywhere = |name: &str, service: &Service| -> Result<()> {
        for (family, protocol) in matrix() {
            let question = Ask::new(protocol, service.frontend(family));
            for from in [rig.pod(0, 0)?, node.host()] {
                until(from, question, answered_by(name))?;
                until(from, question.unconnected(), answered_by(name))?;
            }
        }
        Ok(())
    };
    let [v4, v6] = Family::ALL.map(|family| dns.frontend(family).ip());
    let [other4, other6] = Family::ALL.map(|family| other.frontend(family).ip());
    node.netns().ip(&format!(
        "address add {v4}/32 dev lo\naddress add {v6}/128 dev lo nodad\n\
         address add {other4}/32 dev lo\naddress add {other6}/128 dev lo nodad"
    ))?;
    for protocol in Protocol::ALL {
        node.peer().serve(protocol, &[v4, v6], 80)?;
    }
    let outcome = everywhere(node.name(), &dns).and_then(|()| everywhere(backend, &other));
    for protocol in Protocol::ALL {
        node.peer().stop_serving(protocol, &[v4, v6], 80)?;
    }
    let outcome = outcome.and_then(|()| everywhere(backend, &dns));
    node.netns().ip(&format!(
        "address del {v4}/32 dev lo\naddress del {v6}/128 dev lo\n\
         address del {other4}/32 dev lo\naddress del {other6}/128 dev lo"
    ))?;
    outcome
}

/// Contract 1.6 and 3.2: a process that listens on the number of a `NodePort`, or on an external IP and port of a
/// Service that is also an address of the node, gets no packet of the Service.
fn service_wins_over_a_process_that_listens_on_its_numbers(shape: Shape) -> Result<()> {
    const VIP_PORT: u16 = 8_443;
    let rig = Rig::shared(shape)?;
    let own = rig.node(0)?.addresses();
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    let vip =
        Service::new("vip", 11)?.port(VIP_PORT, TARGET).external_ips(&own.both()).pods(&rig.pods());
    let rig = rig.start(&[&web, &vip])?;
    let node = rig.node(0)?;
    for protocol in Protocol::ALL {
        for port in [NODE_PORT, VIP_PORT] {
            node.peer().serve(protocol, &own.both(), port)?;
        }
    }
    let asked = || -> Result<()> {
        for (family, protocol) in matrix() {
            for port in [NODE_PORT, VIP_PORT] {
                let to = own.socket(family, port);
                for from in [rig.client(), rig.pod(0, 0)?, rig.pod(1, 0)?, node.host()] {
                    let answer = ask(from, Ask::new(protocol, to))?;
                    ensure!(answer.server.starts_with("pod-"), "{} got {answer:?}", from.name());
                }
            }
        }
        Ok(())
    };
    let outcome = asked();
    for protocol in Protocol::ALL {
        for port in [NODE_PORT, VIP_PORT] {
            node.peer().stop_serving(protocol, &own.both(), port)?;
        }
    }
    outcome
}

fn unconnected_socket_talks_to_two_services(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let service = |name: &str, index, node| -> Result<Service> {
        Ok(Service::new(name, index)?.port(80, TARGET).pods(&[rig.pod(node, 0)?]))
    };
    // Two Services with each backend: only the translation can tell which Service an answer belongs to.
    let near = [service("one", 10, 0)?, service("two", 11, 0)?];
    let far = [service("three", 12, 1)?, service("four", 13, 1)?];
    let rig = rig.start(&[&near[0], &near[1], &far[0], &far[1]])?;
    for (family, [one, two]) in Family::ALL.into_iter().flat_map(|it| [(it, &near), (it, &far)]) {
        let to = |service: &Service| Ask::udp(service.frontend(family)).unconnected();
        let socket = rig.node(0)?.peer().keep(to(one))?;
        for service in [one, two, one, two, two, one] {
            let answer = socket.ask_as(to(service))?;
            ensure!(answer.peer == service.frontend(family), "{answer:?}");
        }
    }
    Ok(())
}

fn every_backend_gets_its_share(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape)?;
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.frontend(family));
        for question in [question, question.unconnected()] {
            let found = different_servers(rig.node(0)?, question, 4)?;
            ensure!(found.len() == 4, "{family} {protocol}: only {found:?}");
        }
    }
    Ok(())
}

fn service_without_endpoints_is_refused(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let empty = Service::new("empty", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let rig = rig.start(&[&empty])?;
    let node = rig.node(0)?;
    for (family, protocol) in matrix() {
        for to in [empty.frontend(family), node.addresses().socket(family, NODE_PORT)] {
            refused(node, Ask::new(protocol, to))?;
        }
        if protocol == Protocol::Udp {
            refused(node, Ask::udp(empty.frontend(family)).unconnected())?;
        }
    }
    Ok(())
}

/// An IPv6 socket that uses `::ffff:10.96.0.10` uses the IPv4 Service.
fn mapped_address_is_the_ipv4_service(shape: Shape) -> Result<()> {
    let (rig, web) = rig(shape)?;
    let mapped = IpAddr::V6(web.cluster().v4.to_ipv6_mapped());
    for protocol in Protocol::ALL {
        let question = Ask::new(protocol, SocketAddr::new(mapped, 80));
        for question in [question, question.unconnected()] {
            let answer = ask(rig.node(0)?, question)?;
            ensure!(answer.peer == question.to, "{answer:?}");
        }
    }
    Ok(())
}

fn backend_on_the_own_host_answers(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let own = Service::new("own", 10)?.port(80, TARGET).endpoints([Endpoint::host(rig.node(0)?)]);
    let rig = rig.start(&[&own])?;
    for (family, protocol) in matrix() {
        let answer = ask(rig.node(0)?, Ask::new(protocol, own.frontend(family)))?;
        ensure!(answer.server == "node-a", "{answer:?}");
    }
    Ok(())
}

fn plain_traffic_of_the_host_is_left_alone(shape: Shape) -> Result<()> {
    let (rig, _) = rig(shape)?;
    for to in rig.topology().members() {
        for (family, protocol) in matrix() {
            let question = Ask::new(protocol, to.addresses().socket(family, TARGET));
            for question in [question, question.unconnected()] {
                let answer = ask(rig.node(0)?, question)?;
                ensure!(answer.server == to.name() && answer.peer == question.to, "{answer:?}");
            }
        }
    }
    Ok(())
}
