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
fn tc_knows_before_any_device_has_the_program_and_until_none_has_it() {
    let (mut kernel, mut accelerator) = (Kernel::default(), Accelerator::default());
    let [first, second] = [veth(1), veth(2)];
    let native = Acceleration::Native;
    assert!(!accelerator.may_be_on());

    assert!(!accelerator.apply(native, &[&first, &second], &mut kernel, false));
    assert!(kernel.has.is_empty(), "attached though tc does not know");
    assert!(accelerator.may_be_on() && accelerator.waits(), "nobody tells tc");

    assert!(accelerator.apply(native, &[&first, &second], &mut kernel, true));
    assert_eq!(kernel.has.len(), 2);
    assert!(accelerator.may_be_on() && !accelerator.waits());

    accelerator.apply(native, &[&second], &mut kernel, true);
    assert!(accelerator.may_be_on(), "one has it still");
    accelerator.apply(native, &[], &mut kernel, true);
    assert!(kernel.has.is_empty() && !accelerator.may_be_on());
}

#[test]
fn tc_knows_of_what_an_earlier_run_left_until_it_is_off() {
    let mut kernel = Kernel { has: [1, 7].into(), ..Kernel::default() };
    let mut accelerator = Accelerator::after(&kernel);
    assert!(accelerator.may_be_on());
    let off = Acceleration::Off;
    accelerator.apply(off, &[&veth(1)], &mut kernel, true);
    assert_eq!(kernel.has, [7].into());
    assert!(accelerator.may_be_on(), "it is on a device that is not external any more");
    kernel.has.clear();
    accelerator.apply(off, &[&veth(1)], &mut kernel, true);
    assert!(!accelerator.may_be_on());
    assert!(!Accelerator::after(&kernel).may_be_on());
}

#[test]
fn another_name_of_a_device_is_a_change() {
    let (mut kernel, mut accelerator) = (Kernel::default(), Accelerator::default());
    let off = Acceleration::Off;
    assert!(accelerator.apply(off, &[&veth(1)], &mut kernel, true));
    assert!(!accelerator.apply(off, &[&veth(1)], &mut kernel, true));
    let renamed = Link { name: "no-device-renamed".into(), ..veth(1) };
    assert!(accelerator.apply(off, &[&renamed], &mut kernel, true));
}

#[test]
fn tc_does_not_learn_what_no_device_takes() {
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
        assert_eq!(accelerator.may_be_on(), !tc_knows, "a driver that cannot is asked once");
    }
}

#[test]
fn tc_knows_while_the_program_may_come_back() {
    let mut kernel = Kernel { refuses: [(1, OCCUPIED)].into(), ..Kernel::default() };
    let mut accelerator = Accelerator::default();
    accelerator.apply(Acceleration::Native, &[&veth(1)], &mut kernel, true);
    assert!(accelerator.may_be_on(), "who is in the way may go");
    kernel.refuses.clear();
    accelerator.apply(Acceleration::Native, &[&veth(1)], &mut kernel, true);
    assert!(accelerator.lose(1, "somebody took it off".to_owned()));
    kernel.refuses = [(1, "it cannot be had now")].into();
    accelerator.apply(Acceleration::Native, &[&veth(1)], &mut kernel, true);
    assert!(accelerator.may_be_on(), "it is tried again");
}
