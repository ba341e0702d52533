module digits

go 1.23

require feedlane v0.0.0

replace feedlane => ../../../capi/go
