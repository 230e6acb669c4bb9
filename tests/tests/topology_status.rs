//! What an operator sees at once: the whole screen of `status`, and names as soon as there are rows.

use anyhow::{Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, until};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::Ask;

/// Numbers that are others each time are `#`.
const SCREEN: &str = "\
Agent          running (process #)
Node           node-a
Last sync      #
Pins           PINS
Socket hooks   8 of 8 attached
Device         eth0            external attached  192.168.50.11 fd00:50::11
Device         veth-a1         pod      attached  192.168.50.11 fd00:50::11
Device         veth-a2         pod      attached  192.168.50.11 fd00:50::11
XDP            eth0            not attached: a device of software (veth) is the slower for it
NodePorts on   192.168.50.11 fd00:50::11
Source ports   1024-29999
Sockets        of the host
Services       8 frontends, 4 backends, 0 leaving
Packets translated #
Packets turned #
Packets sent   #
Packets drop   #
Map            SERVICES #
Map            FLOWS #
Map            AFFINITY #
Map            ADDRESSES #
Map            DEVICES #
Map            SOCKETS #
Map            FRAGMENTS #
Map            HELD #
Map            BACKENDS #
Map            SOURCES #
Map            SLOTS #
";

fn start() -> Result<Rig> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080);
    let web = web.pods(&[rig.pod(0, 1)?]);
    rig.start(&[&web])
}

/// The screen without what is another each time.
fn screen(rig: &Rig, agent: &Agent) -> Result<String> {
    let pins = rig.node(0)?.bpf().display().to_string();
    let line = |line: &str| {
        let (name, value) = line.split_at_checked(15).unwrap_or((line, ""));
        match name.split_whitespace().next() {
            Some("Agent") => {
                let digits = |c: char| c.is_ascii_digit();
                let parts: Vec<_> = value.split(digits).filter(|part| !part.is_empty()).collect();
                format!("{name}{}", parts.join("#"))
            }
            Some("Last") => format!("{name}#"),
            Some("Pins") if value.starts_with(&pins) => format!("{name}PINS"),
            Some("Packets") => {
                let words: Vec<_> = line.split_whitespace().take(2).collect();
                format!("{:<14} #", words.join(" "))
            }
            Some("Map") => {
                format!("{name}{} #", value.split_whitespace().next().unwrap_or_default())
            }
            _ => line.to_owned(),
        }
    };
    let said = agent.command(&["status"])?;
    Ok(said.lines().map(|text| line(text) + "\n").collect::<Vec<_>>().concat())
}

#[test]
fn status_is_one_screen_with_the_agent_running_and_dead() -> Result<()> {
    let mut rig = start()?;
    let mut agent = rig.take_agent(0)?;
    let said = screen(&rig, &agent)?;
    ensure!(said == SCREEN, "it says:\n{said}instead of:\n{SCREEN}");
    agent.kill9()?;
    let dead =
        SCREEN.replace("running (process #)", "not running; packets are served as it left them");
    let said = screen(&rig, &agent)?;
    ensure!(said == dead, "it says:\n{said}instead of:\n{dead}");
    Ok(())
}

/// Who is answered by a Service can look up its name.
#[test]
fn names_are_there_when_rows_are() -> Result<()> {
    let rig = start()?;
    for number in 0..8 {
        let name = format!("late-{number}");
        let late = Service::new(&name, 50 + number)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
        rig.manifests().apply(&late)?;
        until(rig.pod(0, 0)?, Ask::udp(late.frontend(Family::V6)), Result::is_ok)?;
        let said = rig.agent(0)?.command(&["lb", "list"])?;
        ensure!(said.contains(&format!("default/{name}")), "{name} has no name yet:\n{said}");
    }
    Ok(())
}
