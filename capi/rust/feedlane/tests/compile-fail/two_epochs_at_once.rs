// SPDX-License-Identifier: Apache-2.0
// error E0499: beginning an epoch abandons the other
pub fn trainer(loader: &mut feedlane::Loader) -> Result<(), feedlane::Error> {
    let mut first = loader.epoch(0)?;
    let mut second = loader.epoch(1)?;
    println!("{:?} {:?}", first.next(), second.next());
    Ok(())
}
