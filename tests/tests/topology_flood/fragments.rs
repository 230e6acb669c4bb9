//! A flood of fragments of incomplete datagrams: no other client loses a large datagram.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, exchange};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Ask, Handmade, pieces};
use lb_tests::wait;

use super::NODE_PORT;
use super::flood::keep_pace;

in_both_shapes!(fragments_of_one_pod_spare_those_of_others);

/// The sizes in bytes of the other clients' datagrams.
const SIZES: [usize; 3] = [1_473, 4_000, 20_001];
/// The payload of a handmade fragment in bytes.
const PIECE: usize = 1_400;
/// The pause of the other clients, who leave time to the flood.
const PAUSE: Duration = Duration::from_millis(10);

/// The fragment tables have no quotas: a sender that fills them with incomplete datagrams displaces fragments of
/// others. But the others' fragments need the tables for milliseconds only.
fn fragments_of_one_pod_spare_those_of_others(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    let near = Service::new("near", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(NODE_PORT);
    let far = far.pods(&[rig.pod(1, 1)?]);
    let flooded = Service::new("flooded", 12)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    let rig = rig.start(&[&near, &far, &flooded])?;
    let client = rig.client();
    let (mut sent, mut answers, mut took) = (0, 0, Duration::ZERO);
    for family in Family::ALL {
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
        let hand = Handmade::open(client, client.addresses().socket(family, 26_300))?;
        let mut numbers = 20_000..;
        let began = Instant::now();
        thread::scope(|scope| {
            let flood = scope.spawn(|| flood(&rig, &flooded, family));
            let mut exchanges = 0;
            while exchanges < 5 || !flood.is_finished() {
                exchanges += 1;
                exchange(rig.pod(0, 1)?, Ask::udp(far.frontend(family)), &SIZES)?;
                exchange(rig.node(0)?, Ask::udp(near.frontend(family)), &SIZES)?;
                let number = numbers.next().context("an identification")?;
                let mut parts = pieces(&hand.question(node_port, 4_000), PIECE, number);
                parts.reverse();
                parts.iter().try_for_each(|part| hand.send(part, node_port))?;
                hand.answer(node_port, 4_000).context("pieces in another order")?;
                answers += 2 * SIZES.len() + 1;
                wait::pass(PAUSE);
            }
            sent += flood.join().map_err(|_panic| anyhow!("the flood ended early"))??;
            anyhow::Ok(())
        })?;
        took += began.elapsed();
    }
    let what = format!("a flood of fragments, {shape:?} pods");
    campaign::figure(&format!("fragments of {what}"), sent, "packets");
    let rate = u128::from(sent) * 1_000 / took.as_millis().max(1);
    campaign::figure(&format!("fragments a second of {what}"), rate, "packets");
    campaign::figure(&format!("large datagrams answered beside {what}"), answers, "answers");
    Ok(())
}

/// Sends the first or the last fragment of each of many datagrams to a Service, so that none becomes complete, 30,000 a
/// second. Returns the number of fragments.
fn flood(rig: &Rig, flooded: &Service, family: Family) -> Result<u32> {
    let (flooder, to) = (rig.pod(0, 0)?, flooded.frontend(family));
    let hand = Handmade::open(flooder, flooder.addresses().socket(family, 26_400))?;
    let mut parts = pieces(&hand.question(to, 2 * PIECE - 100), PIECE, 0);
    ensure!(parts.len() == 2, "{} fragments", parts.len());
    let (mut sent, began) = (0, Instant::now());
    for number in 0..campaign::size(10_000, 30 * 30_000) {
        let part = parts.get_mut(number as usize % 2).context("a fragment")?;
        part.piece.as_mut().context("a fragment")?.id = 1 << 20 | number;
        // A full send queue is not an error: the flood continues.
        sent += u32::from(hand.send(part, to).is_ok());
        keep_pace(number, began);
    }
    Ok(sent)
}
