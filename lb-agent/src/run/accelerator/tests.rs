use super::*;
use crate::node::LinkKind;

/// Interfaces with the program, and why the others do not get it.
#[derive(Default)]
struct Kernel {
    has: BTreeSet<u32>,
    refuses: BTreeMap<u32, &'static str>,
}

impl Attach for Kernel {
    fn accelerate(&mut self, index: u32) -> Result<(), String> {
        if let Some(why) = self.refuses.get(&index) {
            return Err((*why).to_owned());
        }
        self.has.insert(index);
        Ok(())
    }

    fn decelerate(&mut self, index: u32) -> Result<(), String> {
        self.has.remove(&index);
        Ok(())
    }

    fn is_accelerating(&self) -> bool {
        !self.has.is_empty()
    }

    fn takes_frames(&self, _index: u32) -> Result<(), String> {
        Ok(())
    }
}

fn veth(index: u32) -> Link {
    Link { index, name: format!("no-device-{index}"), kind: LinkKind::Veth, ..Link::default() }
}

#[test]
fn tc_setting_precedes_the_first_xdp_and_outlasts_the_last() {
    let (mut kernel, mut accelerator) = (Kernel::default(), Accelerator::default());
    let [first, second] = [veth(1), veth(2)];
    let native = Acceleration::Native;
    assert!(!accelerator.may_be_on());

    assert!(!accelerator.apply(native, &[&first, &second], &mut kernel, false));
    assert!(kernel.has.is_empty(), "attached before tc expects XDP");
    assert!(accelerator.may_be_on() && accelerator.waits(), "tc does not expect XDP yet");

    assert!(accelerator.apply(native, &[&first, &second], &mut kernel, true));
    assert_eq!(kernel.has.len(), 2);
    assert!(accelerator.may_be_on() && !accelerator.waits());

    accelerator.apply(native, &[&second], &mut kernel, true);
    assert!(accelerator.may_be_on(), "one interface still has it");
    accelerator.apply(native, &[], &mut kernel, true);
    assert!(kernel.has.is_empty() && !accelerator.may_be_on());
}

#[test]
fn xdp_of_an_earlier_run_counts_until_it_is_detached() {
    let mut kernel = Kernel { has: [1, 7].into(), ..Kernel::default() };
    let mut accelerator = Accelerator::after(&kernel);
    assert!(accelerator.may_be_on());
    let off = Acceleration::Off;
    accelerator.apply(off, &[&veth(1)], &mut kernel, true);
    assert_eq!(kernel.has, [7].into());
    assert!(accelerator.may_be_on(), "an interface that is no longer external has it");
    kernel.has.clear();
    accelerator.apply(off, &[&veth(1)], &mut kernel, true);
    assert!(!accelerator.may_be_on());
    assert!(!Accelerator::after(&kernel).may_be_on());
}

#[test]
fn renamed_interface_is_a_change() {
    let (mut kernel, mut accelerator) = (Kernel::default(), Accelerator::default());
    let off = Acceleration::Off;
    assert!(accelerator.apply(off, &[&veth(1)], &mut kernel, true));
    assert!(!accelerator.apply(off, &[&veth(1)], &mut kernel, true));
    let renamed = Link { name: "no-device-renamed".into(), ..veth(1) };
    assert!(accelerator.apply(off, &[&renamed], &mut kernel, true));
}

#[test]
fn refused_xdp_is_not_announced_to_tc() {
    let mut kernel =
        Kernel { refuses: [(1, "its driver does not support XDP")].into(), ..Kernel::default() };
    let mut accelerator = Accelerator::default();
    for setting in [Acceleration::Auto, Acceleration::Off] {
        accelerator.apply(setting, &[&veth(1)], &mut kernel, false);
        assert!(!accelerator.may_be_on(), "{setting:?}");
    }
    let mut accelerator = Accelerator::default();
    for tc_knows in [false, true] {
        accelerator.apply(Acceleration::Native, &[&veth(1)], &mut kernel, tc_knows);
        assert_eq!(accelerator.may_be_on(), !tc_knows, "a driver without XDP is tried once");
    }
}

/// The owner of the other program may only restart.
#[test]
fn interface_of_another_program_is_left_to_it_unless_the_setting_demands_xdp() {
    for (setting, follows) in [(Acceleration::Auto, false), (Acceleration::Native, true)] {
        let mut kernel = Kernel { refuses: [(1, OCCUPIED)].into(), ..Kernel::default() };
        let mut accelerator = Accelerator::default();
        let mut card = Link { name: "lo".to_owned(), ..veth(1) };
        card.xdp = 7;
        let occupied = || Some(OCCUPIED.to_owned());
        let (device, keeps, is_lost) = (card.name.clone(), None, false);
        let attempt = Attempt { device, found: 7, refused: occupied(), keeps, is_lost };
        drop(accelerator.attempts.insert(1, attempt));
        kernel.refuses.clear();
        card.xdp = 0;
        accelerator.apply(setting, &[&card], &mut kernel, true);
        assert_eq!(accelerator.attempts[&1].refused == occupied(), !follows, "{setting:?}");
    }
}

#[test]
fn tc_setting_stays_on_while_xdp_may_return() {
    let mut kernel = Kernel { refuses: [(1, OCCUPIED)].into(), ..Kernel::default() };
    let mut accelerator = Accelerator::default();
    accelerator.apply(Acceleration::Native, &[&veth(1)], &mut kernel, true);
    assert!(accelerator.may_be_on(), "the program in the way may be detached");
    kernel.refuses.clear();
    accelerator.apply(Acceleration::Native, &[&veth(1)], &mut kernel, true);
    assert!(accelerator.lose(1, "detached by another program".to_owned()));
    kernel.refuses = [(1, "it cannot be had now")].into();
    accelerator.apply(Acceleration::Native, &[&veth(1)], &mut kernel, true);
    assert!(accelerator.may_be_on(), "it is tried again");
}
